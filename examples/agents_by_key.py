"""Agents by key: one learner per device, shared out to several processes, each of which owns some of the keys.

    python examples/agents_by_key.py              # two processes of torch.distributed
    python examples/agents_by_key.py --ray        # two actors of Ray (pip install ray)

An agent is made when its key appears for the first time, and lives where its key belongs. Agents do not share
anything, so that processes exchange events and no tensors.
"""

import socket
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import hamlearn as hl

KEYS = [f"pump-{number}" for number in range(6)]


def events(count=300):
    """Readings of all devices, as they arrive: a key and a sample."""
    generator = torch.Generator().manual_seed(1)
    for step in range(count):
        number = step * 7 % len(KEYS)
        u = torch.randn(1, 2, generator=generator)
        yield KEYS[number], hl.Sample(u, target=(number * u[:, :1] + 1))


def make(key):
    """The agent of a key, the same in whichever process it is made."""
    torch.manual_seed(zlib.crc32(key.encode()))
    network = hl.Network.feedforward(nn.Linear(2, 1))
    return hl.Learner(network, nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.1))


def owner(key, processes):
    """Where a key belongs: the same in every process, and after every restart (`hash` would not be)."""
    return zlib.crc32(key.encode()) % processes


class Agents:
    """The agents of one process, each with a file of its own."""

    def __init__(self, folder):
        self.folder, self.learners = Path(folder), {}

    def take(self, key, sample):
        """One step of the agent of a key; returns the loss before it."""
        if key not in self.learners:
            self.learners[key] = make(key)
            if self.file(key).exists():
                self.learners[key].load(self.file(key))
        return self.learners[key].step(sample).loss.item()

    def save(self):
        """Save every agent; any number of processes can load them. Returns their keys."""
        for key, learner in self.learners.items():
            learner.save(self.file(key))
        return sorted(self.learners)

    def file(self, key):
        """Where the agent of a key is saved."""
        return self.folder / f"{key}.safetensors"


def rank(number, processes, port, folder):
    """A process of torch.distributed: it reads the feed, and takes the events of its own keys."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=processes)
    torch.set_num_threads(1)
    agents = Agents(folder)
    for key, sample in events():
        if owner(key, processes) == number:
            agents.take(key, sample)
    agents.save()
    dist.barrier()  # now all files are there
    dist.destroy_process_group()


def with_processes(folder, processes=2):
    """Start the processes on this machine; on several, torchrun starts them and sets the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(rank, (processes, port, folder), nprocs=processes)


def with_ray(folder, processes=2):
    """The same agents in actors of Ray: events go to the actor that owns the key."""
    import ray

    ray.init(num_cpus=processes, include_dashboard=False, log_to_driver=False)
    actors = [ray.remote(num_cpus=1)(Agents).remote(folder) for _ in range(processes)]
    losses = [actors[owner(key, processes)].take.remote(key, sample) for key, sample in events()]
    ray.get(losses)
    ray.get([actor.save.remote() for actor in actors])
    ray.shutdown()


def main():
    with tempfile.TemporaryDirectory() as folder:
        (with_ray if "--ray" in sys.argv else with_processes)(folder)
        agents = Agents(folder)  # what they have learned, read by one process
        for key in KEYS:
            learner = make(key)
            learner.load(agents.file(key))
            weight, _ = learner.network.output.weight[0].tolist()
            print(f"{key}: weight {weight:.3f}")


if __name__ == "__main__":
    main()
