"""Spoiled CSV files: read as a plain parser reads them, or refused with an error of ours."""

from __future__ import annotations

import codecs
import csv
import math
import random
import re
import struct
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hamlearn import streams
from hamlearn.errors import HamlearnError
from tests.fuzz.spoil import by_bytes, require, run_cases
from tests.streams.reading import blocks_of

PIECES = [
    b'"', b'""', b"\n", b"\r", b"\r\n", b",", b";", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe4", b"nan", b"inf",
    b"1e39", b"1e400", b"-", b"1_0", b" ", b"\t", b"NA", b"?", b"b", b"x,", b"\x1a", b"\xc3\xa4", b"\xe2\x80\xa8",
    b"9" * 400, b"\x85", b"t,a,b,kind\n", b"0x10", b"\xd9\xa1",
]  # fmt: skip
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
MARKS = [(b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe\0\0", "utf-32-le"), (b"\0\0\xfe\xff", "utf-32-be")]
MARKS += [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")]


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil and read until the time, or the number of cases, is over."""
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(
            "csv_files", lambda draw: case(draw, Path(folder) / "data.csv"), seconds, seed, cases, only
        )


def case(draw: random.Random, path: Path) -> str:
    """One file."""
    encoding = draw.choice(["utf-8", "utf-8", "utf-8", "latin-1", "utf-16-le", "utf-16-be", "utf-32-le"])
    marked = draw.random() < 0.5 and encoding != "latin-1"
    data = table(draw).replace("\n", draw.choice(["\n", "\r\n", "\r"])).encode(encoding)
    data = ({name: mark for mark, name in MARKS}[encoding] if marked else b"") + data
    path.write_bytes(by_bytes(draw, data, PIECES) if draw.random() < 0.95 else data)
    settings: dict[str, Any] = {
        "bad": draw.choice(["raise", "skip"]),
        "missing": draw.choice(["raise", "skip", 7.0]),
    }
    if not marked and draw.random() < 0.8:
        settings["encoding"] = encoding
    if draw.random() < 0.5:
        settings |= {"target": "kind", "classes": ["cat", "dog"]}
    if draw.random() < 0.4:
        settings |= {"time": "t", "unit": 1.0}
    given = read(path, settings)
    blocks = read(path, settings, size=draw.randrange(1, 5))
    require(blocks == given, lambda: f"{path.read_bytes()!r} with {settings}\nas blocks {blocks}\nnot    {given}")
    wanted = plain(path.read_bytes(), settings)
    require(given == wanted, lambda: f"{path.read_bytes()!r} with {settings}\nread as {given}\nnot as  {wanted}")
    return "refused" if given[0] == "refused" else "stopped" if given[2] else "read"


def table(draw: random.Random) -> str:
    """A small table, with quotes, gaps and letters beyond ASCII."""
    rows = ["t,a,b,kind,note"]
    for k in range(draw.randrange(6)):
        cells = [draw.choice(["1.5", "-3", "4e1", " 5 ", '"6"', "NA", "0", "7.25"]) for _ in range(2)]
        note = draw.choice(["", "ä", '"x,y"', '"line\nbreak"', '"say ""so"""', "plain", "€" if k % 2 else "ü"])
        rows.append(f"{k},{cells[0]},{cells[1]},{draw.choice(['cat', 'dog', ''])},{note}")
    return ("\n".join(rows) + draw.choice(["\n", "", "\n\n"])).replace("€", "ß")


def read(path: Path, settings: dict[str, Any], size: int | None = None) -> tuple[Any, ...]:
    """What hamlearn makes of a file: rows, how many were skipped, and whether an error ended it.

    By blocks of so many rows where a `size` is given.
    """
    try:
        stream = streams.csv(path, ["a", "b"], **settings)
    except HamlearnError as error:
        require(len(str(error)) < 3000, lambda: "a message of many pages")
        return ("refused",)
    rows, stopped = [], False
    try:
        for sample in stream if size is None else _by_blocks(stream, size):
            target = None if sample.target is None else sample.target.item()
            rows.append((sample.u.tolist(), target, sample.tau))
    except HamlearnError as error:
        message = str(error)
        require(path.name in message and len(message) < 3000, lambda: f"what file does it speak of: {message}")
        stopped = True
    return rows, None if stopped else stream.skipped, stopped


def _by_blocks(stream: streams.Stream, size: int) -> Iterator[Any]:
    for block in blocks_of(stream, size):
        yield from (block.sample(k) for k in range(block.count))


class BadRowError(Exception):
    """A row that is bad."""


def plain(data: bytes, settings: dict[str, Any]) -> tuple[Any, ...]:
    """The same by other means: the file as a whole, one line of text after the other."""
    lines, at = _lines(data, settings.get("encoding")), 0
    header, at, broken = _record(lines, at, None)
    used = ["a", "b"] + (["kind"] if "target" in settings else []) + (["t"] if "time" in settings else [])
    if broken or any(header.count(name) != 1 for name in used):
        return ("refused",)
    found, skipped, last = [], 0, None
    while at < len(lines):
        row, at, broken = _record(lines, at, len(header))
        try:
            if broken:
                raise BadRowError("cells")
            if row:
                sample, last = _sample(row, header, settings, last)
                if sample is None:
                    skipped += 1
                else:
                    found.append(sample)
        except BadRowError:
            if settings["bad"] == "raise":
                return found, None, True
            skipped += 1
    return found, skipped, False


def _record(lines: list[str], at: int, width: int | None) -> tuple[list[str], int, bool]:
    """The row that begins at a line, the line after it, and whether it is broken (then it is one line)."""
    reader = csv.reader(_texts(lines[at:]), strict=True)
    try:
        row = next(reader, [])
    except (BadRowError, csv.Error):
        return [], at + 1, True
    if row and width is not None and len(row) != width:
        return [], at + 1, True
    return row, at + max(1, reader.line_num), False


def _texts(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if "\udcff" in line or "\0" in line:
            raise BadRowError("no text")
        yield line


def _lines(data: bytes, encoding: str | None) -> list[str]:
    """The lines of a file that was read as a whole; a byte-order mark says more than `encoding`."""
    mark, marked = next(((mark, name) for mark, name in MARKS if data.startswith(mark)), (b"", None))
    # Bytes that are no letters become one that no file has, so that lines can be told apart all the same.
    text = data[len(mark) :].decode(marked or encoding or "utf-8", "hamlearn-flag")
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", text)


codecs.register_error("hamlearn-flag", lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


def _sample(
    row: list[str], header: list[str], settings: dict[str, Any], last: float | None
) -> tuple[Any, float | None]:
    if len(row) != len(header):
        raise BadRowError("cells")
    cells = dict(zip(header, row, strict=True))
    if settings["missing"] == "skip" and any(cells[name].strip().lower() in MISSING for name in ("a", "b")):
        # It is left out, whatever else is in it.
        return None, last
    u = []
    for name in ("a", "b"):
        value = _number(cells[name])
        if value is None:
            if settings["missing"] == "raise":
                raise BadRowError("missing")
            value = settings["missing"]
        u.append(struct.unpack("f", struct.pack("f", value))[0])
    target, tau = None, None
    if "target" in settings:
        text = cells["kind"].strip()
        if text in settings["classes"]:
            target = settings["classes"].index(text)
        elif text.lower() not in MISSING:
            raise BadRowError("class")
    if "time" in settings:
        now = _time(cells["t"].strip())
        if last is not None:
            tau = now - last
            if not 0 < tau < math.inf:
                raise BadRowError("time")
        last = now
    return (u, target, tau), last


def _number(text: str) -> float | None:
    if text.strip().lower() in MISSING:
        return None
    try:
        value = float(text)
    except ValueError:
        raise BadRowError("number") from None
    if "_" in text or not abs(value) <= torch.finfo(torch.float32).max:
        raise BadRowError("number")
    return value


def _time(text: str) -> float:
    try:
        if "_" in text:
            raise ValueError(text)
        now = float(text)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(text)
        except ValueError:
            raise BadRowError("time") from None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(now):
        raise BadRowError("time")
    return now
