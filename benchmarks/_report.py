"""What every benchmark shares: interleaved medians, and dated reports that name machine and versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hamlearn._base import machine


def interleaved_medians(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each piece of work, taken in turn so that a noisy machine disturbs all alike.

    By `time.process_time` they are those of the processor, of all threads together.

    Example:
        >>> medians = interleaved_medians({"a": lambda: None, "b": lambda: None}, rounds=3)
        >>> sorted(medians)
        ['a', 'b']
    """
    for step in work.values():
        step()
    times = interleaved(work, rounds * list(work), repeat, clock)
    return {name: statistics.median(values) for name, (values,) in times.items()}


def interleaved(
    work: Mapping[str, Callable[[], object]],
    turns: Sequence[str],
    repeat: int = 1,
    *clocks: Callable[[], float],
) -> dict[str, list[list[float]]]:
    """Seconds that pieces of work took, by each of some clocks, one after the other.

    Args:
        work: Pieces of work by name.
        turns: Whose turn it is, again and again.
        repeat: How often a piece is done in its turn.
        clocks: Read before and after each turn.

    Example:
        >>> times = interleaved({"a": lambda: None}, ["a", "a"], 1, time.perf_counter, time.process_time)
        >>> [len(values) for values in times["a"]]
        [2, 2]
    """
    times: dict[str, list[list[float]]] = {name: [[] for _ in clocks] for name in work}
    for name in turns:
        step = work[name]
        begin = [clock() for clock in clocks]
        for _ in range(repeat):
            step()
        for values, clock, before in zip(times[name], clocks, begin, strict=True):
            values.append((clock() - before) / repeat)
    return times


def environment() -> dict[str, Any]:
    """Machine and versions, for the report."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "processor": machine.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load average": round(os.getloadavg()[0], 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    } | machine.versions()


def write(out: Path, name: str, results: Mapping[str, Any], rerun: str | None = None) -> Path:
    """Write a dated JSON report into `out`, with what is needed to read it later.

    Args:
        out: Folder.
        name: Of the report.
        results: The measurements.
        rerun: The command that measured it; `None`: the benchmark of that name.
    """
    out.mkdir(parents=True, exist_ok=True)
    about = environment()
    path = out / f"{about['date'][:10]}-{name}.json"
    rerun = rerun or f"hamlearn bench {name}"
    report = {"benchmark": name, "rerun": rerun, "environment": about, "results": results}
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path
