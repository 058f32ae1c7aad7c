"""The HTML report of `hamlearn reproduce`: complete in one file, and fit to be seen."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from rich.console import Console

from hamlearn.experiments.reproduce import Settings, reproduce

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


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
    assert sum(len(row) == 7 for row in rows) == 1 + 4
    assert ["Mom-b", "lr 0.01, momentum 0.1, dampening 0.5, τ 0.5"] in rows
    assert ["Data: Iris", "Iris, 150 samples, from scikit-learn; 150 samples"] in rows
    assert "REDUCED epochs: Iris 3 (paper: 40)" in text


def test_the_report_fetches_nothing_and_tells_no_time(out):
    text = (out / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "http" not in text
    assert not re.search(r"\d\d:\d\d", re.sub(r"base64,[^\"]+", "", text))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to open the report in")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_opens_in_chromium_without_errors_and_shows_its_figures(out, tmp_path, theme):
    from PIL import Image

    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--window-size=1280,2400",
            f"--user-data-dir={tmp_path / 'profile'}",
            *(["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []),
            f"--screenshot={shot}",
            (out / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    image = Image.open(shot).convert("RGB")
    assert image.size == (1280, 2400)
    colours = {colour: count for count, colour in image.getcolors(1 << 24)}
    page = (0x10, 0x15, 0x1C) if theme == "dark" else (0xF6, 0xF7, 0xF9)
    assert colours.get(page, 0) > 100_000
    good = (0x43, 0xC9, 0xA0) if theme == "dark" else (0x14, 0x80, 0x5F)
    assert colours.get(good, 0) > 100, "the ticks are not to be seen"
    # Both figures: their lines, drawn in the colours of the four scenarios, whatever the theme.
    for line in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)):
        near = sum(n for c, n in colours.items() if max(abs(a - b) for a, b in zip(c, line, strict=True)) < 12)
        assert near > 150, f"no line of colour {line}"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to open the report in")
def test_the_report_reads_in_chromium_as_it_was_written(out, tmp_path):
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            (out / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Tables(done.stdout).rows == Tables((out / "report.html").read_text()).rows
    assert done.stdout.count("<img") == 2
