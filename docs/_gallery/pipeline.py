"""The loss of a network whose halves are in two processes."""

import json
import socket
import tempfile
from pathlib import Path

import pipeline
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from matplotlib import pyplot as plt


def rank(number, port, folder):
    """One of the two processes; the last writes down what it found."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    losses = pipeline.work(folder)
    if losses:
        Path("losses.json").write_text(json.dumps(losses))


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
with tempfile.TemporaryDirectory() as folder:
    mp.start_processes(rank, (port, folder), nprocs=2, start_method="fork")
losses = torch.tensor(json.loads(Path("losses.json").read_text()))

figure, ax = plt.subplots(figsize=(6.4, 3))
ax.semilogy(losses, alpha=0.35, linewidth=1)
ax.semilogy(range(19, len(losses)), losses.unfold(0, 20, 1).mean(1), color="C0")
for saved in range(100, len(losses), 100):
    ax.axvline(saved, color="grey", linestyle=":")
ax.set(xlabel="tick; dotted: a checkpoint of both processes", ylabel="loss", xlim=(0, len(losses)))
figure.savefig("pipeline.svg")
