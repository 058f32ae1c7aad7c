"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import html as _html
import itertools
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from hamlearn._base.machine import versions
from hamlearn.errors import ConfigError
from hamlearn.record._whole import write_text
from hamlearn.record.charts import Series, chart, short
from hamlearn.record.jsonl import read
from hamlearn.record.moments import Row

LARGEST = 1e300
"""What is larger is drawn as large as this."""

COUNTS = {"dropped": "samples", "late": "labels, too late", "bad": "messages"}
"""What a feed may have to leave out."""

_KNOWN = frozenset(
    ("step", "t", "tau", "loss", "hamiltonian", "h", "z", "omega", "theta", "seconds", "diverging", *COUNTS)
)


def html(
    record: str | os.PathLike[str] | Iterable[Row],
    out: str | os.PathLike[str],
    title: str = "Run",
    facts: Mapping[str, Any] | None = None,
    speed: str | os.PathLike[str] | Iterable[Row] | None = None,
    resumed: Iterable[int] = (),
) -> Path:
    """Write a report with plots of loss, metrics, norms of h, z, ω and θ, the Hamiltonian and the speed.

    Args:
        record: Rows, or a file of JSON lines.
        out: The HTML file; it carries its plots, styles and script, and fetches nothing.
        title: Its heading.
        facts: What the run was: names and values for a table.
        speed: Rows with `step` and `seconds`, where the record itself has none.
        resumed: Samples after which the run was stopped and resumed: each is marked.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, pathlib
        >>> rows = [{"step": k, "loss": 1 / k, "seconds": k / 1000} for k in range(1, 50)]
        >>> path = html(rows, pathlib.Path(tempfile.mkdtemp()) / "report.html")
        >>> "samples a second" in path.read_text()
        True
    """
    rows = _rows(record)
    if not rows or not all(is_number(row.get("step")) for row in rows):
        raise ConfigError("the record has no rows with a step. Record the field 'step', and at least one moment.")
    parts = sections(rows, rows if speed is None else _rows(speed), resumed)
    body = (
        f'{parts["alarm"]}\n<section class="cards">{parts["cards"]}</section>\n'
        f'<section class="charts">{parts["charts"]}</section>\n{table(facts or {})}'
    )
    text = framed(title, _about(record), body, script=asset("report.js"))
    path = Path(out)
    write_text(path, text)
    return path


def framed(title: str, about: str, body: str, style: str = "", script: str = "") -> str:
    """A whole page around `body`, which is HTML: heading, style and script, and nothing from elsewhere.

    Args:
        title: The heading.
        about: What stands below it.
        body: What the page holds.
        style: What this page has beyond the style of all.
        script: What it runs.
    """
    frame = Template(asset("report.html"))
    words = {"title": _html.escape(title), "about": _html.escape(about)}
    return frame.substitute(words, body=body, style=asset("report.css") + style, script=script)


def sections(rows: list[Row], timed: list[Row], resumed: Iterable[int] = ()) -> dict[str, str]:
    """The parts of a page that change as rows arrive: `alarm`, `cards` and `charts`, each as HTML.

    Args:
        rows: The record; not empty, each with a `step`.
        timed: Rows with `step` and `seconds`, and counts of the feed.
        resumed: Samples after which the run was resumed.
    """
    rates = _rates(timed)
    own = [name for name in rows[-1] if name not in _KNOWN and not name.endswith(("_min", "_max"))]
    own = [name for name in own if any(is_number(row.get(name)) for row in rows)]
    pairs = [name for name in own if not name.endswith(" (window)")]
    losses = _series(rows, "loss")
    norms = [_series(rows, name) for name in ("h", "z", "omega", "theta")]
    panels = [
        ("Loss", "L(y, target) before each sample was learned, with a running mean", _with_mean(losses)),
        *((name, "Scored before the sample was learned", _scored(rows, name, own)) for name in pairs),
        ("Norms", "Euclidean norms of state, costates and weights", norms),
        ("Hamiltonian", "H = φL + ⟨z, f_h⟩", [] if _is_loss(rows) else [_series(rows, "hamiltonian")]),
        ("Speed", "Samples a second, by the clock", [rates]),
        ("Feed", "Samples dropped, labels that came too late, bad messages", _counts(rows, timed)),
    ]
    panels = [panel for panel in panels if any(series.x for series in panel[2])]
    marks = [_drawn(step) for step in resumed]
    # Two columns: an odd one out is the first, which takes both.
    charts = [chart(*panel, wide=k == 0 and len(panels) % 2 == 1, marks=marks) for k, panel in enumerate(panels)]
    cards = _cards(rows, timed, rates, pairs)
    return {"alarm": _alarm(rows[-1].get("diverging")), "cards": "".join(cards), "charts": "".join(charts)}


def asset(name: str) -> str:
    """A file of the page: its frame, its style or its script."""
    return resources.files("hamlearn.record").joinpath(name).read_text("utf-8")


def _counts(rows: list[Row], timed: list[Row]) -> list[Series]:
    """What a feed had to leave out, as far as anything was."""
    sources = {name: rows if is_number(rows[-1].get(name)) else timed for name in COUNTS}
    return [_series(source, name) for name, source in sources.items() if source and source[-1].get(name)]


def _rows(source: str | os.PathLike[str] | Iterable[Row]) -> list[Row]:
    return read(source) if isinstance(source, str | os.PathLike) else list(source)


def _about(record: Any) -> str:
    """By what the page was written, and when the last row was."""
    written = datetime.now(UTC)
    if isinstance(record, str | os.PathLike):
        written = datetime.fromtimestamp(Path(record).stat().st_mtime, UTC)
    names = {"hamlearn": "hamlearn", "torch": "PyTorch", "python": "Python"}
    told = ", ".join(f"{names[name]} {version}" for name, version in versions().items())
    return f"{written:%Y-%m-%d %H:%M} UTC · {told}"


def _alarm(since: Any) -> str:
    if not is_number(since):
        return ""
    return (
        f'<p class="alarm"><b>Diverging</b> since sample {since:,}: the loss is worse than at the start or than '
        "guessing, and the weights grow. A smaller β (a lower learning rate), or inputs and targets of about "
        "size 1, may help.</p>"
    )


def _with_mean(series: Series) -> list[Series]:
    if len(series.x) < 10:
        return [series]
    series.faint = True
    return [series, series.averaged("running mean")]


def _scored(rows: list[Row], name: str, own: list[str]) -> list[Series]:
    """A metric over a window and over everything; once, where the window was never full."""
    window = f"{name} (window)"
    over_all = _series(rows, name)
    if window not in own:
        return [over_all]
    last = _series(rows, window)
    return [over_all] if last.y == over_all.y else [last, over_all]


def _is_loss(rows: list[Row]) -> bool:
    """Whether H is nothing but the loss: a network without state has no other part of it."""
    pairs: list[tuple[Any, Any]]
    pairs = [(row["loss"], row.get("hamiltonian")) for row in rows if is_number(row.get("loss"))]
    if not pairs or not all(is_number(h) for _, h in pairs):
        return False
    largest = max(pairs, key=lambda pair: abs(pair[0]))
    phi = largest[1] / largest[0] if largest[0] else 1.0
    return all(math.isclose(h, phi * loss, rel_tol=1e-5, abs_tol=1e-12) for loss, h in pairs)


def is_number(value: Any) -> bool:
    """Whether a value can be drawn: a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e308 if isinstance(value, int) else math.isfinite(value)


def _drawn(value: float) -> float:
    # At the very end of what numbers can say, the width of a chart would be infinite.
    return max(-LARGEST, min(LARGEST, float(value)))


def _series(rows: list[Row], name: str) -> Series:
    low, high = f"{name}_min", f"{name}_max"
    kept = [row for row in rows if is_number(row.get(name))]
    x, y = [_drawn(row["step"]) for row in kept], [_drawn(row[name]) for row in kept]
    if kept and all(is_number(row.get(low)) and is_number(row.get(high)) for row in kept):
        return Series(name, x, y, [_drawn(row[low]) for row in kept], [_drawn(row[high]) for row in kept])
    return Series(name, x, y)


def _rates(rows: list[Row]) -> Series:
    x, y = [], []
    for before, row in itertools.pairwise(rows):
        if all(is_number(r.get("seconds")) and is_number(r.get("step")) for r in (row, before)):
            # After a resume the clock starts anew: that pair says nothing.
            passed, done = row["seconds"] - before["seconds"], row["step"] - before["step"]
            if passed > 0 and done > 0:
                x.append(_drawn(row["step"]))
                y.append(_drawn(float(done) / float(passed)))
    return Series("samples a second", x, y)


def _cards(rows: list[Row], timed: list[Row], rates: Series, metrics: list[str]) -> Iterable[str]:
    losses = [_drawn(row["loss"]) for row in rows if is_number(row.get("loss"))]
    tenth = losses[-max(1, len(losses) // 10) :]
    cards = [("samples", f"{rows[-1]['step']:,}", "seen")]
    if losses:
        first = statistics.fmean(losses[: max(1, len(losses) // 10)])
        cards.append(("loss", short(statistics.fmean(tenth)), f"at first {short(first)}"))
    for name in metrics:
        if is_number(rows[-1].get(name)):
            cards.append((name, short(_drawn(rows[-1][name])), "over all samples"))
    if rates.y:
        cards.append(("speed", short(statistics.median(rates.y)), "samples a second, median"))
    if is_number(rows[-1].get("t")):
        cards.append(("time", short(_drawn(rows[-1]["t"])), "of the stream"))
    for name, note in COUNTS.items():
        count = rows[-1].get(name, timed[-1].get(name) if timed else None)
        if is_number(count) and count:
            cards.append((name, f"{count:,}", note))
    for name, value, note in cards:
        yield (
            f'<div class="card"><span>{_html.escape(name)}</span><strong>{value}</strong>'
            f"<small>{_html.escape(note)}</small></div>"
        )


def table(facts: Mapping[str, Any]) -> str:
    """What was run, as HTML."""
    if not facts:
        return ""
    rows = "".join(
        f"<tr><th>{_html.escape(str(name))}</th><td>{_html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<section class="facts"><h2>What was run</h2><table>{rows}</table></section>'
