"""Spoiled records: read as a plain parser reads them and drawn, or refused with an error of ours."""

from __future__ import annotations

import contextlib
import json
import math
import random
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hamlearn import record
from hamlearn.errors import CheckpointError, ConfigError, HamlearnError
from hamlearn.experiments.run import RECORD, REPORT, SPEED, report
from tests.fuzz.spoil import by_bytes, require, run_cases

PIECES = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"Infinity", b'"nan"', b'"-inf"', b"1e400",
    b"1e308", b"-1e308", b"5e-324", b"-0.0", b"9" * 30, b"9" * 400, b"9" * 5000, b"[" * 60_000, b"\xff", b"\0",
    b"\n", b'"slot": 3, ', b'"slot": "x", ',
    b'"step": 4, ', b'"step": -1, ', b"\\ud800", b"<b>", b"\xef\xbb\xbf", b"0",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 3, 0.5, 1e308, -1e308, 5e-324, 10**30, 10**400, "nan", "inf", "x", "", [],
    [1], {}, "\ud800", "<script>", 2**63, -0.0, 1e-300,
]  # fmt: skip
NAMES = [
    "step",
    "t",
    "loss",
    "h",
    "theta",
    "seconds",
    "dropped",
    "MAE",
    "MAE (window)",
    "loss_min",
    "loss_max",
    "slot",
]
CONFIG = '[run]\ntitle = "A & B"\n[stream]\nkind = "signals.henon"\n'


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil, read and draw until the time, or the number of cases, is over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG)
        return run_cases("record_files", lambda draw: case(draw, folder), seconds, seed, cases, only)


def case(draw: random.Random, folder: Path) -> str:
    """A record is read and drawn, or gone on with."""
    (folder / REPORT).write_text("as it was")
    files = {name: spoiled(draw, rows(draw)) for name in (RECORD, SPEED)}
    if draw.random() < 0.3:
        return resumed(draw, folder)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        read(folder / name, data)
    try:
        report(folder)
    except HamlearnError as error:
        message = str(error)
        require(len(message) < 3000, lambda: "a message of many pages")
        require((folder / REPORT).read_text() == "as it was", lambda: f"a report was written before {message}")
        return "refused"
    page = (folder / REPORT).read_bytes().decode("utf-8")
    require("<script>alert" not in page and "A &amp; B" in page, lambda: f"the report of {files}")
    Strict().feed(page)
    return "drawn"


class Strict(HTMLParser):
    """Refuses numbers in a drawing that are none."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        places = [str(value) for name, value in attrs if name in ("points", "x", "y", "cx", "cy", "x1", "y1")]
        require("nan" not in str(places) and "inf" not in str(places), lambda: f"<{tag} at {places}>")


def rows(draw: random.Random) -> list[dict[str, Any]]:
    """Some rows, some of them odd."""
    made = []
    for k in range(draw.choice([0, 1, 2, 3, 5, 5, 5, 300])):
        row = {
            "step": 10 * k,
            "t": 0.5 * k,
            "loss": 1 / (k + 1),
            "h": None,
            "theta": 2.0,
            "seconds": k / 100,
            "MAE": 0.1,
        }
        if draw.random() < 0.1:
            row[draw.choice(NAMES)] = draw.choice(VALUES)
        if draw.random() < 0.01:
            del row[draw.choice(list(row))]
        made.append(row)
    return made


def spoiled(draw: random.Random, made: list[dict[str, Any]]) -> bytes:
    """The rows as a file, now and then with other bytes."""
    data = b"".join(json.dumps(row).encode() + b"\n" for row in made)
    return by_bytes(draw, data, PIECES) if draw.random() < 0.35 else data


def read(path: Path, data: bytes) -> None:
    """Whether the rows that are read are those that a plain parser finds."""
    given: Any = None
    with contextlib.suppress(CheckpointError):
        given = record.read(path)
    wanted = plain(data)
    require(repr(given) == repr(wanted), lambda: f"{data[:2000]!r}\nread as {given}\nnot as  {wanted}")


def plain(data: bytes) -> list[dict[str, Any]] | None:
    """The rows, or `None` where one of them is none."""
    found, slots = [], {}
    for raw in data.split(b"\n")[:-1]:
        try:
            row = json.loads(raw.decode("utf-8"))
            if not isinstance(row, dict) or "NaN" in _constants(raw.decode()):
                return None
            json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        row = {k: float(v) if isinstance(v, str) and v in ("nan", "inf", "-inf") else v for k, v in row.items()}
        if any(
            type(row.get(name, 0)) is not int or not 0 <= row.get(name, 0) < 2**63 for name in ("step", "slot")
        ):
            return None
        if "slot" in row:
            slots[row.pop("slot")] = row
        else:
            found.append(row)
    return found + sorted(slots.values(), key=lambda row: row.get("step", 0))


def _constants(text: str) -> list[str]:
    found: list[str] = []
    json.loads(text, parse_constant=lambda name: found.append("NaN"))
    return found


def resumed(draw: random.Random, folder: Path) -> str:
    """A sink goes on with a file exactly where it was, or refuses a file that is no longer what it wrote."""
    path = folder / "resumed.jsonl"
    path.unlink(missing_ok=True)
    sink = record.JsonLines(path)
    for k in range(4):
        sink.put({"step": k, "loss": draw.random()}, None)
    state = json.loads(json.dumps(sink.state_dict()))
    for k in range(draw.randrange(3)):
        sink.put({"step": 4 + k}, None)
    sink.close()
    whole = path.read_bytes()
    path.write_bytes(by_bytes(draw, whole, PIECES) if draw.random() < 0.9 else whole + b'{"ste')
    intact = path.read_bytes()[: state["bytes"]] == whole[: state["bytes"]]
    sink = record.JsonLines(path, append=True)
    try:
        sink.load_state_dict(state)
    except CheckpointError as error:
        message = str(error)
        require(not intact, lambda: f"{whole!r} is intact, but: {message}")
        return "refused"
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    finally:
        sink.close()
    require(path.read_bytes() == whole[: state["bytes"]], lambda: f"{path.read_bytes()!r} is not what was saved")
    return "resumed"
