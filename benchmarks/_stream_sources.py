"""Where samples come from, for `hamlearn bench stream`: how many rows a second can be read, and learned from.

Each source is read by itself in blocks, and then by the compiled engine, which learns from every row with a small
network. Each reads the same table, in memory or in a CSV file, plain, standardised, unevenly spaced in time,
with time stamps, or with categories and gaps.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import _report
from hamlearn import streams
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.streams import Stream

REACH = {"standardised": 150_000, "uneven": 150_000}
"""To reach by the compiled engine: rows a second."""
CHUNK = 256
COLUMNS = 8


def measure(device: str, quick: bool = False) -> dict[str, Any]:
    """Rows a second of each source, read alone and learned from."""
    rows, rounds = (2 * CHUNK, 2) if quick else (200 * CHUNK, 7)
    with tempfile.TemporaryDirectory() as folder:
        sources = make_sources(Path(folder) / "table.csv", rows)
        work: dict[str, Callable[[], object]] = {}
        for name, source in sources.items():
            work[f"{name}, read"] = lambda source=source: _read(source())  # type: ignore[misc]
            work[f"{name}, learned"] = _learned(source, device)
        medians = _report.interleaved_medians(work, rounds)
    cells = {
        name: {part: round(rows / medians[f"{name}, {part}"]) for part in ("read", "learned")} for name in sources
    }
    return {"reach": REACH, "rows": rows, "columns": COLUMNS, "chunk": CHUNK, "rounds": rounds, "cells": cells}


def make_sources(path: Path, rows: int) -> dict[str, Callable[[], Stream]]:
    """The sources by name; each call makes a new stream."""
    generator = torch.Generator().manual_seed(0)
    u = 3 + 2 * torch.randn(rows, COLUMNS, generator=generator)
    y = (u.sum(1) > 3 * COLUMNS).long()
    _write(path, u.tolist(), y.tolist())
    names = [f"x{k}" for k in range(COLUMNS)]
    times = (0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)).cumsum(0)

    def table(**settings: Any) -> Stream:
        return streams.csv(path, names, "y", classes=["0", "1"], **settings)

    def mixed() -> Stream:
        return streams.csv(
            path,
            [*names, "rain", "shop", "customer"],
            "y",
            "t",
            classes=2,
            unit=1.0,
            categories={"shop": ["north", "south", "west"]},
            hashed={"customer": 16},
            missing="indicate",
        )

    return {
        "tensors": lambda: streams.from_any((u, y)),
        "standardised": lambda: streams.standardize(streams.from_any((u, y))),
        "uneven": lambda: streams.timed(times, u, y, unit=1.0),
        "csv": table,
        "csv, standardised": lambda: streams.standardize(table()),
        "csv, stamped": lambda: table(time="t", unit=1.0),
        "csv, categories and gaps": mixed,
    }


def _write(path: Path, u: list[list[float]], y: list[int]) -> None:
    draw = random.Random(0)
    with path.open("w") as file:
        file.write("t," + ",".join(f"x{k}" for k in range(COLUMNS)) + ",rain,shop,customer,y\n")
        for k, (row, label) in enumerate(zip(u, y, strict=True)):
            rain = "" if draw.random() < 0.2 else f"{draw.random():.3f}"
            rest = f"{rain},{draw.choice(('north', 'south', 'west'))},c{draw.randrange(1000)},{label}"
            file.write(f"{k + 0.1 * (k % 3):.1f},{','.join(f'{x:.5f}' for x in row)},{rest}\n")


def _read(stream: Stream) -> int:
    iter(stream)
    return sum(
        len(block) if isinstance(block, list) else block.count for block in iter(lambda: stream.block(CHUNK), None)
    )


def _learned(source: Callable[[], Stream], device: str) -> Callable[[], object]:
    """A pass of a learner over the source; it keeps learning from pass to pass."""
    torch.manual_seed(0)
    width = source().spec.u.shape[0]
    module = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    learner = Learner(Network.feedforward(module), nn.functional.cross_entropy, Hyper(beta=1e-3))

    def one_pass() -> object:
        last = None
        for report in learner.run(source(), engine="compiled", chunk=CHUNK):
            last = report
        return last

    return one_pass


def show(found: dict[str, Any], device: str) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("source", "rows a second", "learned from", "to reach", title=f"sources of samples, {device}")
    for name, cell in found["cells"].items():
        reach = found["reach"].get(name)
        table.add_row(name, f"{cell['read']:,}", f"{cell['learned']:,}", "" if reach is None else f"{reach:,}")
    Console().print(table)
