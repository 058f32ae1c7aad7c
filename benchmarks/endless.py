"""Resident memory on a stream that does not end: after 1,000,000 steps against after 10,000."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from benchmarks import _report
from hamlearn.credit import Forward
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Step a small recurrent learner, note its resident memory now and then, and write a dated report."""
    early, late = (500, 2_000) if quick else (10_000, 1_000_000)
    torch.manual_seed(0)
    network = Network.recurrent(nn.RNNCell(4, 8), nn.Linear(8, 2))
    learner = Learner(
        network, nn.functional.mse_loss, Hyper(beta=1e-4, eta=0.1), order="sequential", credit=Forward()
    )
    samples = [Sample(torch.randn(1, 4), torch.randn(1, 2)) for _ in range(64)]
    process = psutil.Process()
    resident: dict[int, int] = {}
    marks = {early, *range(0, late + 1, late // 10)} - {0}
    for step in track(range(1, late + 1), description="steps"):
        learner.step(samples[step % 64])
        if step in marks:
            gc.collect()
            resident[step] = process.memory_info().rss
    ratio = resident[late] / resident[early]
    found = {
        "reach": 1.01,
        "ratio": ratio,
        "resident_bytes": {str(step): size for step, size in sorted(resident.items())},
    }
    _report.write(out, "endless", found)
    Console().print(f"resident memory after {late:,} steps / after {early:,}: {ratio:.4f}")
    return found
