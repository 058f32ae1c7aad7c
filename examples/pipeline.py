"""Two processes share a network of six layers: each computes and learns its half in every tick.

Run as it is, this starts two processes on this machine. It also runs under torchrun, which restarts dead ranks:

    torchrun --nproc-per-node 2 --max-restarts 3 examples/pipeline.py
"""

import os
import socket
import tempfile
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import hamlearn as hl


def network():
    torch.manual_seed(0)
    sizes = (4, 16, 16, 16, 16, 16, 1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)))


def samples():
    generator = torch.Generator().manual_seed(1)
    for u in torch.randn(400, 8, 4, generator=generator):
        yield hl.Sample(u, target=torch.tanh(u.sum(dim=1, keepdim=True)))


def work(folder):
    """Learn as one rank of all; on the last, the losses."""
    torch.set_num_threads(1)
    learner = hl.distributed.PipelineLearner(
        network(), nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.05), align=True, timeout=30
    )
    learner.resume(folder)  # from the last complete checkpoint, if there is one
    losses = []
    for report in learner.run(samples(), resume=True, save_to=folder, save_every=100):
        if report.loss is not None:  # on the last rank
            losses.append(report.loss.item())
    if losses:
        first, last = sum(losses[:50]) / 50, sum(losses[-50:]) / 50
        print(f"rank {learner.rank} of {learner.ranks}: loss {first:.3f} at first, {last:.3f} at the end")
    dist.barrier()
    dist.destroy_process_group()
    return losses


def rank(number, port, folder):
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=place, rank=number, world_size=2)
    work(folder)


def main():
    if "RANK" in os.environ:  # torchrun has started this process
        dist.init_process_group("gloo")
        work("out/pipeline")
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (port, folder), nprocs=2)


if __name__ == "__main__":
    main()
