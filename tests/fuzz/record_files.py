"""Spoiled records: read as a plain parser reads them and drawn, or refused with an error of ours."""

from __future__ import annotations

import json
import math
import random
import tempfile
from pathlib import Path

from hamlearn.errors import HamlearnError
from hamlearn.experiments.run import RECORD, REPORT, SPEED, report
from tests.fuzz.spoil import by_bytes, require, run_cases

PIECES = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"Infinity", b'"nan"', b"1e400", b"1e308",
    b"5e-324", b"-0.0", b"9" * 400, b"9" * 5000, b"[" * 60_000, b"\xff", b"\0", b"\n", b'"step": 4, ',
    b'"step": -1, ', b"\\ud800", b"<b>", b"</script>", b"\xef\xbb\xbf", b"0",
]  # fmt: skip
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
    """A record is read and drawn, or refused."""
    (folder / REPORT).write_text("as it was")
    rows = [
        {"step": 10 * k, "loss": 1 / (k + 1), "seconds": k / 100, "MAE": 0.1} for k in range(draw.randrange(6))
    ]
    whole = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for name in (RECORD, SPEED):
        (folder / name).write_bytes(by_bytes(draw, whole, PIECES) if draw.random() < 0.35 else whole)
    try:
        report(folder)
    except HamlearnError as error:
        message = str(error)
        require(len(message) < 3000, lambda: "a message of many pages")
        require((folder / REPORT).read_text() == "as it was", lambda: f"a report was written before {message}")
        return "refused"
    page = (folder / REPORT).read_bytes().decode("utf-8")
    data = page.partition('id="data">')[2].partition("</script>")[0]
    json.loads(data, parse_constant=lambda name: require(False, lambda: f"{name} is in the page"))
    require("A &amp; B" in page and page.rstrip().endswith("</html>"), lambda: f"the report of {whole!r}")
    return "drawn"
