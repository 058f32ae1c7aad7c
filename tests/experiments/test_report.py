"""The HTML report of `hamlearn reproduce`: complete in one file, and fit to be seen."""

import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from hamlearn.experiments.reproduce import Settings, reproduce
from tests.browser import colours, needs_chromium, see


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    settings = Settings(models=("Linear", "MLP"), epochs=3)
    assert reproduce(settings, folder, console=Console(quiet=True))
    return folder


class Tables(HTMLParser):
    """Cells of every row of every table."""

    def __init__(self, text):
        super().__init__()
        self.rows, self._cell = [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None


def test_the_report_shows_each_cell_the_extension_the_settings_and_the_data(out):
    text = (out / "report.html").read_text()
    rows = Tables(text).rows
    cells = [row for row in rows if len(row) == 11 and row[1] != "setting"]
    assert len(cells) == 2 * 4 * 2 + 2 * 4
    assert {row[-1] for row in cells} == {"✓"}
    assert ["Mom-b", "lr 0.01, momentum 0.1, dampening 0.5, τ 0.5"] in rows
    assert ["Data: Iris", "Iris, 150 samples, from scikit-learn; 150 samples"] in rows
    assert "REDUCED epochs: Iris 3 (paper: 40)" in text


def test_the_report_fetches_nothing_and_tells_no_time(out):
    text = (out / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "http" not in text
    assert not re.search(r"\d\d:\d\d", re.sub(r"base64,[^\"]+", "", text))


@needs_chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_opens_in_chromium_without_errors_and_shows_its_figures(out, tmp_path, theme):
    found = colours(out / "report.html", tmp_path, 1280, 2400, theme)
    page = (0x10, 0x15, 0x1C) if theme == "dark" else (0xF6, 0xF7, 0xF9)
    assert found.get(page, 0) > 100_000
    good = (0x43, 0xC9, 0xA0) if theme == "dark" else (0x14, 0x80, 0x5F)
    assert found.get(good, 0) > 100, "the ticks are not to be seen"
    # Both figures: their lines, drawn in the colours of the four scenarios, whatever the theme.
    for line in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)):
        near = sum(n for c, n in found.items() if max(abs(a - b) for a, b in zip(c, line, strict=True)) < 12)
        assert near > 150, f"no line of colour {line}"


@needs_chromium
def test_the_report_reads_in_chromium_as_it_was_written(out, tmp_path):
    done = see(out / "report.html", tmp_path, "--dump-dom")
    assert Tables(done.stdout).rows == Tables((out / "report.html").read_text()).rows
    assert done.stdout.count("<img") == 2
