"""Many small networks at once, for `hamlearn bench stream`: 64 MLPs of the size for Iris against one of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hamlearn.credit import Cleared
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner, Population
from hamlearn.network import Network
from hamlearn.streams import Stream, from_dataset

MEMBERS = 64
REACH = 4.0
"""To reach: time of all members over that of one."""
SAMPLES = 10_240


def measure(device: str, quick: bool = False) -> dict[str, Any]:
    """Time of a step of one member and of all, interleaved, and how far the members are from their single runs.

    The population's groups are shared out over as many threads as there are cores, up to four; one learner is one
    thread's work.
    """
    rounds, threads = 2 if quick else 15, min(os.cpu_count() or 1, 4)
    rates = [Hyper.from_sgd(lr=0.001 * (k + 1), momentum=0.5) for k in range(8)]
    stream = _stream(device)
    population = Population(lambda hyper: _mlp(hyper, device), rates, seeds=range(8))
    first = time.perf_counter()
    _go(population.run(stream))
    first = time.perf_counter() - first
    gap = max(_gap(population, number, rates, stream, device) for number in (0, 21, 42, 63))
    torch.manual_seed(0)
    one = _mlp(rates[0], device)
    _go(one.run(stream, engine="compiled"))
    times: dict[str, list[float]] = {"one": [], "all, one thread": [], "all": []}
    for _ in range(rounds):
        times["one"].append(_go(one.run(stream, engine="compiled")))
        times["all, one thread"].append(_go(population.run(stream)))
        torch.set_num_threads(threads)
        times["all"].append(_go(population.run(stream)))
        torch.set_num_threads(1)
    each = {name: statistics.median(found) / SAMPLES * 1e6 for name, found in times.items()}
    return {
        "members": MEMBERS,
        "threads": threads,
        "reach": REACH,
        "microseconds": each,
        "all_over_one": each["all"] / each["one"],
        "first_pass_seconds": first,
        "largest_gap_to_single_run": gap,
        "rounds": rounds,
    }


def show(found: dict[str, Any], device: str) -> None:
    """Print one line."""
    times = found["microseconds"]
    print(
        f"{found['members']} MLPs of 4-30-3 on {device}: {times['all']:.2f} µs a step by {found['threads']} "
        f"threads, {times['all, one thread']:.2f} by one; one MLP {times['one']:.2f} µs; ratio "
        f"{found['all_over_one']:.2f} (to reach: {found['reach']:g}); weights within "
        f"{found['largest_gap_to_single_run']:.1e} of single runs"
    )


def _mlp(hyper: Hyper, device: str) -> Learner:
    network = Network.feedforward(nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)))
    return Learner(network.to(device), nn.functional.cross_entropy, hyper, order="sequential", credit=Cleared())


def _stream(device: str) -> Stream:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(SAMPLES, 4, generator=generator)
    target = (u @ torch.randn(4, 3, generator=generator)).argmax(1)
    return from_dataset(TensorDataset(u.to(device), target.to(device)))


def _gap(population: Population, number: int, rates: list[Hyper], stream: Stream, device: str) -> float:
    torch.manual_seed(number % 8)
    alone = _mlp(rates[number // 8], device)
    _go(alone.run(stream, engine="compiled"))
    pairs = zip(alone.network.parameters(), population.members[number].network.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def _go(reports: Iterable[Any]) -> float:
    began = time.perf_counter()
    for _ in reports:
        pass
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
