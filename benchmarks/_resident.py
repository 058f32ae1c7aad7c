"""Resident memory of a reversible net, in processes of their own: what the allocator keeps counts too.

A training step of N layers, each with its own field, whose gradients stay while the states before and behind them
are given back. Measured is the peak of resident memory beyond what was held before the step, with the allocator of
the C library as it is, and with `MALLOC_MMAP_THRESHOLD_=65536`, which has it hand large pieces back at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks._long_runs import peak_resident_bytes
from hamlearn.reversible import Midpoint, MidpointSequential, ResidualField

WIDTH = 64
TAU = 0.05
SETTING = "MALLOC_MMAP_THRESHOLD_"
LIMITS = {"as it is": None, f"{SETTING}=65536": "65536"}


def measure_resident(quick: bool) -> list[dict[str, Any]]:
    """Peak resident memory at two depths, or at one if quick, with both settings of the allocator."""
    depths, batch = ((5,), 256) if quick else ((10, 300), 4096)
    found = []
    for depth in depths:
        for name, limit in LIMITS.items():
            environment = {key: value for key, value in os.environ.items() if key != SETTING}
            if limit is not None:
                environment[SETTING] = limit
            command = [sys.executable, "-m", "benchmarks._resident", str(depth), str(batch)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=ROOT)
            found.append({"allocator": name, **json.loads(done.stdout.splitlines()[-1])})
    return found


def main(depth: int, batch: int) -> None:
    """Take one training step and print the memory it took as a line of JSON."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = MidpointSequential(*(ResidualField(WIDTH) for _ in range(depth)), tau=TAU)
    h = 0.3 * torch.randn(batch, WIDTH)
    # A first backward run loads libraries, which do not count.
    Midpoint(ResidualField(WIDTH), 2, TAU)(h[:2].clone().requires_grad_()).sum().backward()
    held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    net(h.requires_grad_()).square().mean().backward()
    weights = sum(weight.numel() for weight in net.parameters())
    report = {"depth": depth, "batch": batch, "width": WIDTH, "weights": weights}
    print(json.dumps({**report, "peak_resident_bytes": peak_resident_bytes() - held}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
