"""How many samples a run will take, for the end of its progress bar."""

from __future__ import annotations

import math
from pathlib import Path

from hamlearn.experiments.run_config import Config
from hamlearn.streams import Stream

COUNTED = 64 << 20
"""Bytes whose lines are counted one by one; of a longer file, its size tells the rest."""


def foreseen(config: Config, folder: Path, stream: Stream) -> int | None:
    """Samples that a run takes in all, as far as can be seen before it; `None` where nobody knows.

    The rows of a CSV file are counted by their lines: a row that is left out, or has a line end in one of its
    cells, makes it a few samples too many.

    Args:
        config: The configuration.
        folder: What its paths are relative to.
        stream: The stream that was built from it.
    """
    found = config["run"]["steps"]
    length = stream.length
    if length is None and config["stream"]["kind"] == "csv":
        length = max(0, lines(folder / config["stream"]["path"]) - 1) * config["stream"].get("hold", 1)
    known = [n for n in (found, length) if n is not None and n != math.inf]
    return int(min(known)) if known else None


def lines(path: Path, counted: int = COUNTED) -> int:
    r"""Lines of a file, the last one without an end among them; beyond `counted` bytes by their mean length.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "table.csv"
        >>> path.write_text("a,b\n1,2\n3,4"), lines(path)
        (11, 3)
    """
    ends = returns = read = 0
    last = b""
    with path.open("rb") as file:
        while read < counted and (data := file.read(min(1 << 20, counted - read))):
            ends, returns = ends + data.count(b"\n"), returns + data.count(b"\r")
            read, last = read + len(data), data[-1:]
    # Old files end their lines by CR alone.
    found = ends or returns
    if read < path.stat().st_size:
        return round(found * path.stat().st_size / read)
    return found + (last not in (b"\n", b"\r", b"\0", b""))
