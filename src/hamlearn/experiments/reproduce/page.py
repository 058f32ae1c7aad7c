"""The report: one HTML file with tables, figures, settings and data, that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from hamlearn.experiments.data import Dataset
from hamlearn.experiments.reproduce import tables
from hamlearn.experiments.reproduce.job import environment
from hamlearn.experiments.reproduce.plan import Settings
from hamlearn.experiments.reproduce.results import Row
from hamlearn.experiments.reproduce.tables import Line
from hamlearn.experiments.scenarios import SCENARIOS
from hamlearn.record.page import framed, table


def write_page(
    path: Path,
    settings: Settings,
    data: Mapping[str, Dataset],
    rows: Sequence[Row],
    figures: Mapping[str, Path],
) -> None:
    """Write the report.

    Args:
        path: The HTML file.
        settings: What was reproduced.
        data: Data sets by name.
        rows: Every comparison.
        figures: PNG files by caption, put into the page.
    """
    misses = "".join(f"<li>{escape(miss)}</li>" for row in rows for miss in row.misses)
    body = [
        f'<section class="cards">{"".join(_cards(rows))}</section>',
        f'<ul class="misses">{misses}</ul>',
        *(_figure(caption, picture) for caption, picture in figures.items()),
        *_tables(settings, rows),
        table(_facts(settings, data)),
    ]
    style = resources.files("hamlearn.experiments.reproduce").joinpath("report.css").read_text("utf-8")
    if settings.reduced:
        style += "header p { color: var(--bad); font-weight: 600; }\n"
    title, about = "Hamiltonian Learning against SGD", tables.conditions(settings)
    path.write_text(framed(title, about, "\n".join(body), style), "utf-8")


def _cards(rows: Sequence[Row]) -> list[str]:
    passed = sum(row.passed for row in rows)
    cards = [
        ("comparisons within their bound", f"{passed} of {len(rows)}", "good" if passed == len(rows) else "bad")
    ]
    exact = [row for row in rows if row.bound == 0]
    if exact:
        equal = sum(row.gap.max == 0 for row in exact)
        kind = "good" if equal == len(exact) else "bad"
        cards.append(("output nets equal to SGD in every bit, float32", f"{equal} of {len(exact)}", kind))
    for dtype in dict.fromkeys(row.job.dtype for row in rows):
        worst = max(row.gap.max for row in rows if row.job.dtype == dtype)
        cards.append((f"largest |Δθ| anywhere, {dtype}", tables.number(worst), ""))
    return [
        f'<div class="card {kind}"><strong>{v}</strong><span>{escape(name)}</span></div>'
        for name, v, kind in cards
    ]


def _figure(caption: str, picture: Path) -> str:
    code = base64.b64encode(picture.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{code}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _tables(settings: Settings, rows: Sequence[Row]) -> list[str]:
    found = []
    for dtype in settings.dtypes:
        cells = [row for row in rows if row.job.part == "paper" and row.job.dtype == dtype]
        bounds = tables.bounds_in_words(settings, dtype)
        note = f"|Δθ| at the end; loss L and accuracy are means of the last epoch; {bounds}."
        found.append(
            _table(f"The paper's cells in {dtype}", note, tables.PAPER_HEAD, tables.paper_lines(cells), 3)
        )
    beyond = [row for row in rows if row.job.part != "paper"]
    if beyond:
        note = (
            "Largest |Δθ| over settings of SGD and time steps drawn at random; 20 samples, 3 epochs, reviews cut "
            "to 30 words. Each setting is in table.csv."
        )
        head, lines = tables.extension_head(settings.dtypes), tables.extension_lines(beyond, settings.dtypes)
        found.append(_table("Beyond the paper", note, head, lines, 3))
    return found


def _table(title: str, note: str, head: Sequence[str], lines: Sequence[Line], words: int) -> str:
    names = "".join(
        f"<th{'' if k < words else ' class=n'}>{escape(name)}</th>" for k, name in enumerate((*head, ""))
    )
    body = []
    for line in lines:
        cells = "".join(
            f"<td{'' if k < words else ' class=n'}>{escape(word)}</td>" for k, word in enumerate(line.words)
        )
        mark = '<td class="n good">✓</td>' if line.passed else '<td class="n bad">✗</td>'
        body.append(f"<tr{' class=last' if line.last else ''}>{cells}{mark}</tr>")
    return (
        f'<section class="table"><h2>{escape(title)}</h2><p>{escape(note)}</p><div class="wide">'
        f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _facts(settings: Settings, data: Mapping[str, Dataset]) -> dict[str, str]:
    facts = {f"Data: {name}": f"{one.description}; {len(one)} samples" for name, one in data.items()}
    for name in SCENARIOS:
        if name in settings.scenarios:
            one = SCENARIOS[name]
            facts[name] = f"lr {one.lr:g}, momentum {one.momentum:g}, dampening {one.dampening:g}, τ {one.tau:g}"
    facts |= {"Seed": str(settings.seed), "Loss": "cross-entropy, batch 1, one thread a run"}
    facts |= {
        f"Version of {name}" if name != "machine" else "Machine": text for name, text in environment().items()
    }
    return facts
