"""What every benchmark shares: interleaved medians, and dated reports that name machine and versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


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
    times: dict[str, list[float]] = {name: [] for name in work}
    for step in work.values():
        step()
    for _ in range(rounds):
        for name, step in work.items():
            begin = clock()
            for _ in range(repeat):
                step()
            times[name].append((clock() - begin) / repeat)
    return {name: statistics.median(values) for name, values in times.items()}


def environment() -> dict[str, Any]:
    """Machine and versions, for the report."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load average": round(os.getloadavg()[0], 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hamlearn": _own_version(),
    }


def write(out: Path, name: str, results: Mapping[str, Any], rerun: str | None = None) -> Path:
    """Write a dated JSON report into `out`, with what is needed to read it later.

    Args:
        out: Folder.
        name: Of the report.
        results: What was found.
        rerun: The command that measured it; `None`: the benchmark of that name.
    """
    out.mkdir(parents=True, exist_ok=True)
    about = environment()
    path = out / f"{about['date'][:10]}-{name}.json"
    rerun = rerun or f"hamlearn bench {name}"
    report = {"benchmark": name, "rerun": rerun, "environment": about, "results": results}
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path


def _own_version() -> str:
    try:
        return metadata.version("hamlearn")
    except metadata.PackageNotFoundError:
        return "run from its sources"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
