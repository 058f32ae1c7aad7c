"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import html as _html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from hamlearn._base.machine import versions
from hamlearn.errors import ConfigError
from hamlearn.record.fields import Row
from hamlearn.record.jsonl import read
from hamlearn.state.files import replace

Source = str | os.PathLike[str]
T = TypeVar("T")

MOST_ROWS = 4000
"""Rows that a page is given at most: many more than a chart has points."""
PLACES = (
    '<noscript><p class="alarm">This page draws its charts by a script, which is switched off.</p></noscript>'
    '<div id="alarm" role="alert"></div>\n<section id="cards" class="cards"></section>\n'
    '<section id="charts" class="charts"></section>'
)
"""Where the script puts what it draws."""


def html(
    record: Source | Iterable[Row],
    out: Source,
    title: str = "Run",
    facts: Mapping[str, Any] | None = None,
    speed: Source | Iterable[Row] | None = None,
    resumed: Iterable[int] = (),
    result: Source | Mapping[str, Any] | None = None,
) -> Path:
    """Write a report with charts of the loss, the metrics and baselines, norms, the Hamiltonian and the speed.

    Args:
        record: Rows, or a file of JSON lines.
        out: The HTML file; it carries its data, style and script, and fetches nothing.
        title: Its heading.
        facts: What the run was: names and values for a table.
        speed: Rows with `step` and `seconds`, if the record itself has none.
        resumed: Samples after which the run was stopped and resumed: each is marked.
        result: What `hamlearn run` wrote to `result.json`, or its path: says if the learner is behind a baseline.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, pathlib
        >>> rows = [{"step": k, "loss": 1 / k, "seconds": k / 1000} for k in range(1, 50)]
        >>> path = html(rows, pathlib.Path(tempfile.mkdtemp()) / "report.html")
        >>> '"step": 49' in path.read_text()
        True
    """
    rows = _rows(record)
    if not rows or not all(type(row.get("step")) is int for row in rows):
        raise ConfigError("the record has no rows with a step. Record the field 'step', and at least one step.")
    if isinstance(result, str | os.PathLike):
        result = json.loads(Path(result).read_text("utf-8")) if Path(result).is_file() else None
    written = datetime.now(UTC)
    if isinstance(record, str | os.PathLike):
        written = datetime.fromtimestamp(Path(record).stat().st_mtime, UTC)
    names = {"hamlearn": "hamlearn", "torch": "PyTorch", "python": "Python"}
    about = f"{written:%Y-%m-%d %H:%M} UTC · " + ", ".join(f"{names[n]} {v}" for n, v in versions().items())
    data = page_data(rows, rows if speed is None else _rows(speed), resumed=list(resumed), result=result or {})
    # Within a script, only "</" could end it.
    data = data.replace("</", "<\\/")
    embedded = f'<script type="application/json" id="data">{data}</script>'
    path = Path(out)
    head, script = f"<style>\n{asset('report.css')}</style>", f"<script>\n{asset('report.js')}</script>"
    page = framed(title, _html.escape(about), facts, head, f"{embedded}\n{script}")
    replace(path, page.encode())
    return path


def page_data(rows: Sequence[Row], timed: Sequence[Row], **more: Any) -> str:
    """What the script draws, as JSON. Numbers that are not finite are left out; of many rows, some are."""
    return json.dumps({"rows": _drawable(rows), "timed": _drawable(timed), **more})


def _drawable(rows: Sequence[Row]) -> list[Row]:
    return [
        {name: value for name, value in row.items() if not isinstance(value, float) or math.isfinite(value)}
        for row in thinned(rows)
    ]


def thinned(rows: Sequence[T]) -> list[T]:
    """Every so many-th row, and the last: a chart has far fewer points."""
    step = -(-len(rows) // MOST_ROWS) or 1
    return list(rows) if step == 1 else [*rows[:-1:step], rows[-1]]


def framed(title: str, about: str, facts: Mapping[str, Any] | None, head: str, end: str = "") -> str:
    """A whole page, in which the script finds its places.

    Args:
        title: The heading.
        about: What stands below it, as HTML.
        facts: What was run: names and values for a table.
        head: What stands in the head of the page, as HTML.
        end: What stands at its end.
    """
    body = f"{PLACES}\n{_table(facts or {})}\n{end}"
    words = {"title": _html.escape(title), "about": about, "body": body, "head": head}
    return Template(asset("report.html")).substitute(words)


def asset(name: str) -> str:
    """A file of the page: its frame, its style or its script."""
    return resources.files("hamlearn.record").joinpath(name).read_text("utf-8")


def _table(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{_html.escape(str(name))}</th><td>{_html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<section class="facts"><h2>What was run</h2><table>{rows}</table></section>' if facts else ""


def _rows(source: Source | Iterable[Row]) -> list[Row]:
    return read(source) if isinstance(source, str | os.PathLike) else list(source)
