"""What stream, record and progress bar cost together, as a share of an eager step of a 30-neuron RNN.

Bare steps over samples in a list take turns with a run that has a synthetic stream, a record in JSON lines (every
fiftieth step, the default) and the progress bar; the ratio is the median over the turns.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import _report
from hamlearn import record, streams
from hamlearn.credit import Forward
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample
from hamlearn.streams import signals

INPUTS, NEURONS = 1, 30


def _learner() -> Learner:
    torch.manual_seed(0)
    network = Network.recurrent(torch.nn.RNNCell(INPUTS, NEURONS), torch.nn.Linear(NEURONS, 1))
    hyper = Hyper(eta=0.2, beta=0.02)
    return Learner(network, torch.nn.functional.mse_loss, hyper, order="sequential", credit=Forward())


def _bare(samples: list[Sample]) -> float:
    learner = _learner()
    began = time.perf_counter()
    for sample in samples:
        learner.step(sample)
    return time.perf_counter() - began


def _run(stream: Iterable[Sample], *sinks: record.Sink) -> float:
    learner = _learner()
    with record.Recorder(learner, *sinks, stream=stream) as recorder:
        reports = recorder(learner.run(stream))
        began = time.perf_counter()
        for _ in reports:
            pass
        return time.perf_counter() - began


def measure(steps: int = 1500, turns: int = 9) -> dict[str, Any]:
    """Microseconds a step, and the share of each part, over `turns` turns of `steps` steps."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def stream() -> streams.Stream:
            return streams.take(signals.mackey_glass(), steps)

        def lines() -> record.Sink:
            return record.JsonLines(Path(folder) / f"{next(numbers)}.jsonl")

        def bar() -> record.Sink:
            # A terminal that costs nothing to write to: the bar is drawn in full.
            return record.Progress(steps, console=Console(file=io.StringIO(), force_terminal=True))

        samples = list(stream())
        cases: dict[str, Callable[[], float]] = {
            "bare": lambda: _bare(samples),
            "stream": lambda: _run(stream()),
            "record": lambda: _run(samples, lines()),
            "bar": lambda: _run(samples, bar()),
            "all": lambda: _run(stream(), lines(), bar()),
        }
        took: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(turns):
            for name, case in cases.items():
                took[name].append(case() / steps * 1e6)
    shares = {
        name: statistics.median(a / b - 1 for a, b in zip(times, took["bare"], strict=True))
        for name, times in took.items()
    }
    micros = {name: round(statistics.median(times), 1) for name, times in took.items()}
    return {"microseconds a step": micros, "overhead": {name: round(share, 4) for name, share in shares.items()}}


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure on one thread, print, and write a dated report."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {"reach": 0.1, **(measure(200, 2) if quick else measure())}
    finally:
        torch.set_num_threads(threads)
    Console().print(found)
    _report.write(out, "overhead", found)
    return found
