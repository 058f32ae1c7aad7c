"""An echoed sequence against autograd's BPTT plus SGD of the same cell, and the memory of an endless echo."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks import _report
from hamlearn.credit import Echo
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample

LENGTH, INPUTS, NEURONS = 200, 50, 30
CROSS_ENTROPY = nn.functional.cross_entropy


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Time full and truncated echoes, watch the memory of 200,000 tokens, and write a dated report."""
    torch.manual_seed(0)
    network = Network.recurrent(nn.RNNCell(INPUTS, NEURONS), nn.Linear(NEURONS, 2))
    u, target = torch.randn(LENGTH, 1, INPUTS), torch.randint(0, 2, (LENGTH, 1))
    work: dict[str, Callable[[], object]] = {
        "bptt": _bptt(copy.deepcopy(network), u, target),
        "echo": _echo(copy.deepcopy(network), u, target, Echo()),
        "echo_last_50": _echo(copy.deepcopy(network), u, target, Echo(truncate=50)),
        "echo_by_token": _echo(copy.deepcopy(network), u, target, Echo(dissipate="token")),
    }
    medians = _report.interleaved_medians(work, rounds=3 if quick else 41)
    found = {
        "reach": 1.25,
        "tokens": LENGTH,
        "milliseconds": {name: round(1e3 * seconds, 2) for name, seconds in medians.items()},
        "ratios": {name: medians[name] / medians["bptt"] for name in work if name != "bptt"},
        "memory": _memory(network, tokens=2_000 if quick else 200_000),
    }
    _report.write(out, "echo", found)
    Console().print(found)
    return found


def _bptt(network: Network, u: Tensor, target: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def sequence() -> object:
        h, loss = torch.zeros(1, NEURONS), torch.zeros(())
        for k in range(LENGTH):
            h = network.state_net(u[k], h)
            loss = loss + CROSS_ENTROPY(network.output_net(u[k], h), target[k])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return sequence


def _echo(network: Network, u: Tensor, target: Tensor, credit: Echo) -> Callable[[], object]:
    hyper = Hyper.from_sgd(lr=0.01, momentum=0.9)
    learner = Learner(network, CROSS_ENTROPY, hyper, order="sequential", credit=credit)
    tokens = [Sample(u[k], target[k], boundary=k == LENGTH - 1) for k in range(LENGTH)]
    return lambda: [learner.step(token) for token in tokens]


def _memory(network: Network, tokens: int) -> dict[str, Any]:
    hyper = Hyper.from_sgd(lr=0.001, momentum=0.5)
    learner = Learner(network, CROSS_ENTROPY, hyper, order="sequential", credit=Echo(truncate=20, every=10))
    samples = [Sample(torch.randn(1, INPUTS), torch.tensor([k % 2])) for k in range(16)]
    process, early, most = psutil.Process(), 0, 0
    for k in range(1, tokens + 1):
        learner.step(samples[k % 16])
        most = max(most, learner.stored_tokens)
        if k == tokens // 20:
            gc.collect()
            early = process.memory_info().rss
    gc.collect()
    late = process.memory_info().rss
    return {
        "tokens": tokens,
        "most_stored": most,
        "resident_early": early,
        "resident_late": late,
        "ratio": late / early,
    }
