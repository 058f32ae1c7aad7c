"""TensorBoard, the progress bar, and the report in a real browser."""

import html.parser
import io
import math
import re

import pytest
from rich.console import Console

from hamlearn import record
from hamlearn.errors import ConfigError
from hamlearn.record.charts import MOST_POINTS, Axis, Series, short
from tests.browser import colours, needs_chromium


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written(learner, stream, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    memory = record.Memory(record.Every(20))
    with record.Recorder(learner, record.TensorBoard(tmp_path, record.Every(20)), memory) as recorder:
        for _ in recorder(learner.run(stream)):
            pass
        assert recorder.state_dict()["sinks"][0]["step"] == 60
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = events.Scalars("hamlearn/loss")
    assert [e.step for e in scalars] == [20, 40, 60]
    assert [e.value for e in scalars] == pytest.approx(memory.column("loss"), rel=1e-6)
    assert "hamlearn/omega" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_tensorboard_run_hides_what_was_written_after_the_state(learner, stream, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = record.TensorBoard(tmp_path, record.Every(10), ("loss",))
    recorder = record.Recorder(learner, first)
    for k, _ in enumerate(recorder(learner.run(stream)), 1):
        if k == 30:
            state = recorder.state_dict()
    recorder.close()
    second = record.TensorBoard(tmp_path, record.Every(10), ("loss",))
    recorder = record.Recorder(learner, second)
    recorder.load_state_dict(state)
    for _ in recorder(learner.run(stream, max_steps=20)):
        pass
    recorder.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("hamlearn/loss")] == [10, 20, 30, 40, 50]


def test_the_progress_bar_shows_loss_speed_and_dropped_samples(learner, stream):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)

    class Feed:
        dropped = 1234

    bar = record.Progress(total=60, every=0.0, console=console)
    with record.Recorder(learner, bar, stream=Feed()) as recorder:
        for _ in recorder(learner.run(stream)):
            pass
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").strip().splitlines()
    last = lines[-1]
    assert "60/60" in last
    assert re.search(r"loss 0\.\d+", last)
    assert re.search(r"[\d,]+ samples/s", last)
    assert "1,234 dropped" in last
    assert any("16/60" in line for line in lines)


def test_an_endless_bar_without_a_loss_is_drawn_too():
    screen = io.StringIO()
    bar = record.Progress(console=Console(file=screen, force_terminal=True, width=100, color_system=None))
    record.Recorder(None, bar).close()
    assert "loss -" in screen.getvalue()
    assert record.Recorder(None, bar).state_dict() == {"step": 0, "sinks": []}
    bar.close()


def rows(n=3000):
    for k in range(1, n + 1):
        yield {
            "step": k,
            "t": 0.5 * k,
            "loss": None if k % 7 == 0 else 1 / k + 0.1 * abs(math.sin(k)),
            "hamiltonian": math.sin(k / 100),
            "h": 1.0 + 0.1 * math.sin(k),
            "z": 0.01,
            "omega": 1e-3 * k,
            "theta": 3.0,
            "seconds": k / 2000,
            "dropped": k // 10,
            "MAE <x>": 1 / (1 + k / 100),
            "MAE <x> (window)": 1 / (1 + k / 90),
        }


class Page(html.parser.HTMLParser):
    """Collects titles of charts, and anything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.charts, self.fetched, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "svg":
            self.charts.append(found["aria-label"])
        for name in ("src", "href"):
            if name in found and found[name] != "data:,":
                self.fetched.append(found[name])

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_has_all_plots_and_fetches_nothing(tmp_path):
    path = record.html(rows(), tmp_path / "report.html", title="A <run> & more", facts={"network": "RNN <30>"})
    text = path.read_text("utf-8")
    page = Page()
    page.feed(text)
    assert page.charts == ["Loss", "MAE <x>", "Norms", "Hamiltonian", "Speed", "Feed"]
    assert page.fetched == []
    assert "http" not in text
    assert "A <run> & more" in page.text
    assert "RNN <30>" in page.text
    assert len(text) < 400_000, "long records are thinned"


def test_a_report_is_made_of_what_there_is_and_from_files(tmp_path):
    sink = record.JsonLines(tmp_path / "run.jsonl")
    sink.put({"step": 5, "loss": 0.5}, None)
    sink.close()
    speed = [{"step": 1, "seconds": 9.0}, {"step": 2, "seconds": 0.5}, {"step": 4, "seconds": 1.0}]
    page = Page()
    page.feed(record.html(tmp_path / "run.jsonl", tmp_path / "r.html", speed=speed).read_text("utf-8"))
    assert page.charts == ["Loss", "Speed"]
    with pytest.raises(ConfigError, match="no rows with a step"):
        record.html([], tmp_path / "r.html")


def test_axes_have_round_ticks_and_lines_are_thinned_to_means_with_a_band():
    assert Axis(0, 10, 0, 100).ticks() == [0, 2, 4, 6, 8, 10]
    assert Axis(0.001, 10, 0, 100, log=True).ticks() == [0.001, 0.01, 0.1, 1.0, 10.0]
    assert Axis(0, 10, 0, 100)(2.5) == 25
    assert Axis(1, 100, 0, 100, log=True)(10) == 50
    assert Axis(3, 3, 0, 100)(3) == 50
    n = MOST_POINTS * 4
    thin = Series("x", [float(k) for k in range(n)], [float(k % 4) for k in range(n)]).thinned()
    assert thin.y == [1.5] * MOST_POINTS
    assert (thin.low, thin.high) == ([0.0] * MOST_POINTS, [3.0] * MOST_POINTS)
    assert [short(v) for v in (0, 0.00012, 0.5, 1234, 12345, 2.5e6)] == [
        "0",
        "1.2e-4",
        "0.5",
        "1234",
        "12.35k",
        "2.5M",
    ]


@needs_chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_opens_in_chromium_without_errors_and_shows_its_plots(tmp_path, theme):
    path = record.html(rows(), tmp_path / "report.html", title="A run")
    found = colours(path, tmp_path, 1280, 1500, theme)
    light = {"blue": (0x2F, 0x6F, 0xDE), "orange": (0xE0, 0x59, 0x2A), "teal": (0x14, 0x92, 0x7F)}
    dark = {"blue": (0x6E, 0xA3, 0xFF), "orange": (0xFF, 0x8D, 0x63), "teal": (0x43, 0xC9, 0xB3)}
    for name, colour in (light if theme == "light" else dark).items():
        assert found.get(colour, 0) > 150, f"the {name} line is not to be seen"
