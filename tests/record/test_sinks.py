"""Experiment trackers and the progress bar get what they show, and continue where a resumed run does."""

import io
import re
import sys

import pytest
from rich.console import Console

from hamlearn import record
from hamlearn.errors import ConfigError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written_and_hides_what_a_resumed_run_writes_again(learner, stream, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    memory = record.Memory(10)
    recorder = record.Recorder(learner, record.TensorBoard(tmp_path, 10), memory)
    for k, _ in enumerate(recorder(learner.run(stream)), 1):
        if k == 30:
            state = recorder.state_dict()
    recorder.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = events.Scalars("hamlearn/loss")
    assert [one.step for one in scalars] == [10, 20, 30, 40, 50, 60]
    assert [one.value for one in scalars] == pytest.approx(memory.column("loss"), rel=1e-6)
    assert "hamlearn/omega" in events.Tags()["scalars"]
    recorder = record.Recorder(learner, record.TensorBoard(tmp_path, 10), record.Memory())
    recorder.load_state_dict(state)
    for _ in recorder(learner.run(stream, max_steps=20)):
        pass
    recorder.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [one.step for one in events.Scalars("hamlearn/loss")] == [10, 20, 30, 40, 50]


def test_trackers_get_the_numbers_of_rows_and_their_step():
    calls = []
    sink = record.Tracker(lambda numbers, step: calls.append((numbers, step)), fields=("loss",))
    sink.put({"step": 100, "loss": 0.5, "MAE (window)": 0.25, "h": None, "omega": float("nan")})
    assert calls == [({"loss": 0.5, "MAE window": 0.25}, 100)]


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"TensorBoard needs tensorboard: pip install"):
        record.TensorBoard("folder")


def test_the_progress_bar_shows_loss_speed_and_dropped_samples(learner, stream):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)

    class Feed:
        dropped = 1234

    bar = record.Progress(total=60, pause=0.0, console=console)
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
    assert record.Recorder(None, record.Progress(console=console)).state_dict() == {"step": 0, "sinks": []}
