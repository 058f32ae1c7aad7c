"""The report: one file that a browser opens without a word of complaint and without anything from elsewhere."""

import html.parser
import json
import math
import os
import re
from datetime import UTC, datetime

import pytest
import torch

import hamlearn
from hamlearn import record
from hamlearn.errors import ConfigError
from hamlearn.record.page import MOST_ROWS
from tests.browser import chromium, colours, needs_chromium


def rows(n=3000):
    for k in range(1, n + 1):
        yield {
            "step": k,
            "loss": None if k % 7 == 0 else 1 / k + 0.1 * abs(math.sin(k)),
            "hamiltonian": math.sin(k / 100),
            "h": 1.0 + 0.1 * math.sin(k),
            "z": 0.01,
            "omega": 1e-3 * k,
            "theta": 3.0,
            "seconds": k / 2000,
            "dropped": k // 10,
            "MAE": 1 / (1 + k / 100),
            "MAE (window)": 1 / (1 + k / 90),
            "MAE (last value)": 0.4,
            "MAE (mean)": 0.6,
            "F1 <x>": 0.5,
        }


class Page(html.parser.HTMLParser):
    """Collects what a browser would fetch, and the text."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value != "data:,"]

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_carries_all_that_it_needs(tmp_path):
    title, facts = "A <run> & more", {"network": "RNN <30>", "note": "</script>"}
    path = record.html(rows(3 * MOST_ROWS), tmp_path / "report.html", title=title, facts=facts)
    text = path.read_text("utf-8")
    page = Page(text)
    assert page.fetched == []
    assert {title, "RNN <30>"} <= set(page.text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert len(data["rows"]) <= MOST_ROWS + 1
    assert (data["rows"][0]["step"], data["rows"][-1]["step"]) == (1, 3 * MOST_ROWS)


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    given = [{"step": 1, "loss": math.nan, "MAE": math.inf}, {"step": 2, "loss": 1.0}]
    text = record.html(given, tmp_path / "r.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1], parse_constant=pytest.fail)
    assert data["rows"] == [{"step": 1}, {"step": 2, "loss": 1.0}]


def test_versions_and_the_date_of_the_last_row_are_shown(tmp_path):
    path = tmp_path / "run.jsonl"
    lines = record.JsonLines(path)
    lines.put({"step": 5, "loss": 0.5})
    lines.close()
    when = datetime(2024, 2, 29, 12, 34, tzinfo=UTC).timestamp()
    os.utime(path, (when, when))
    text = record.html(path, tmp_path / "report.html", result=tmp_path / "missing.json").read_text()
    assert f"2024-02-29 12:34 UTC · hamlearn {hamlearn.__version__}, PyTorch {torch.__version__}" in text
    with pytest.raises(ConfigError, match="no rows with a step"):
        record.html([], tmp_path / "r.html")


@needs_chromium
def test_chromium_shows_charts_cards_and_what_the_learner_is_behind(tmp_path):
    behind = "The learner is behind the baseline 'last value': MAE 0.61 against 0.52 over all samples."
    path = record.html(rows(), tmp_path / "report.html", resumed=[700, 720, 2900], result={"behind": [behind]})
    with chromium(tmp_path / "profile", path.as_uri()) as page:
        page.until("document.querySelectorAll('svg.chart').length === 7")
        titles = page.see("[...document.querySelectorAll('figcaption h2')].map(title => title.textContent)")
        assert titles == ["Loss", "MAE", "F1 <x>", "Norms", "Hamiltonian", "Speed", "Feed"]
        assert page.see("document.querySelector('.alarm:not(noscript *)').textContent") == behind
        cards = page.see("[...document.querySelectorAll('.card')].map(card => card.textContent)")
        assert cards[0] == "samples3,000seen"
        assert cards[2] == "MAE0.02913all samples 0.03226, last value 0.4, mean 0.6"
        legend = page.see("document.querySelector('.legend').textContent")
        assert legend == "loss 0.02225running mean 0.06349"
        marks = "document.querySelector('figure').querySelectorAll"
        assert (page.see(f"{marks}('.mark').length"), page.see(f"{marks}('.mark-name').length")) == (3, 2)
        assert page.see("document.querySelectorAll('.scale:not([hidden])').length") == 2
        assert page.complaints == []


@needs_chromium
def test_what_says_nothing_new_is_not_drawn(tmp_path):
    same = [{"step": k, "loss": 1 / k, "hamiltonian": 0.5 / k, "MAE": k, "MAE (window)": k} for k in range(1, 9)]
    path = record.html(same, tmp_path / "report.html")
    with chromium(tmp_path / "profile", path.as_uri()) as page:
        page.until("document.querySelectorAll('svg.chart').length > 0")
        titles = page.see("[...document.querySelectorAll('figcaption h2')].map(title => title.textContent)")
        assert titles == ["Loss", "MAE"]
        assert page.see("document.querySelectorAll('.key').length") == 2


@needs_chromium
def test_chromium_draws_whatever_numbers_can_be(tmp_path):
    values = [0.0, -0.0, 5e-324, 1e-300, 1.0, 1.0 + 1e-16, -1e308, 1.7e308, 10**400, None, "text"]
    names = ("loss", "MAE", "seconds", "dropped", "hamiltonian")
    for number, first in enumerate(values):
        given = [
            {"step": k, **dict.fromkeys((f"{name} {second}" for name in names), v), "loss": v}
            for second in values
            for k, v in enumerate((first, second, first))
        ]
        path = record.html(given, tmp_path / f"{number}.html")
        assert path.exists()
    with chromium(tmp_path / "profile", path.with_name("0.html").as_uri()) as page:
        for number in range(len(values)):
            page.call("Page.navigate", url=path.with_name(f"{number}.html").as_uri())
            page.until(f"location.pathname.endsWith('/{number}.html')")
            drawn = page.see(
                "[...document.querySelectorAll('path.line, text, line')].map(one => one.outerHTML).join()"
            )
            assert not re.search(r"NaN|Infinity", drawn)
        assert page.complaints == []


@needs_chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_has_its_colours_in_light_and_dark(tmp_path, theme):
    path = record.html(rows(), tmp_path / "report.html", title="A run")
    found = colours(path, tmp_path, 1280, 1500, theme)
    light = {"blue": (0x2F, 0x6F, 0xDE), "orange": (0xE0, 0x59, 0x2A), "teal": (0x14, 0x92, 0x7F)}
    dark = {"blue": (0x6E, 0xA3, 0xFF), "orange": (0xFF, 0x8D, 0x63), "teal": (0x43, 0xC9, 0xB3)}
    for name, colour in (light if theme == "light" else dark).items():
        assert found.get(colour, 0) > 150, f"the {name} line is not to be seen"
