"""Experiment trackers and the progress bar get what they show, and continue where a resumed run does."""

import io
import re
import sys
import types

import pytest
from rich.console import Console

from hamlearn import record
from hamlearn.errors import ConfigError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written_and_hides_what_a_resumed_run_writes_again(learner, stream, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    memory = record.Memory(record.Every(10))
    recorder = record.Recorder(learner, record.TensorBoard(tmp_path, record.Every(10)), memory)
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
    recorder = record.Recorder(learner, record.TensorBoard(tmp_path, record.Every(10)), record.Memory())
    recorder.load_state_dict(state)
    for _ in recorder(learner.run(stream, max_steps=20)):
        pass
    recorder.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [one.step for one in events.Scalars("hamlearn/loss")] == [10, 20, 30, 40, 50]


class Run:
    """What MLflow and Weights & Biases know of a run."""

    def __init__(self, calls, id):
        self.calls, self.id, self.info = calls, id, types.SimpleNamespace(run_id=id)

    def log(self, numbers, step):
        self.calls.append(("log", step, numbers))

    def finish(self):
        self.calls.append(("finish",))


@pytest.fixture
def calls(monkeypatch):
    """Stand-ins for both packages, with the functions that are used of them."""
    made = []

    def start(**settings):
        made.append(("start", settings))
        return Run(made, settings.get("run_id") or settings.get("id") or "run-1")

    mlflow, wandb = types.ModuleType("mlflow"), types.ModuleType("wandb")
    mlflow.start_run, mlflow.active_run = start, lambda: None
    mlflow.log_metrics = lambda numbers, step, run_id: made.append(("log", step, numbers))
    mlflow.end_run = lambda: made.append(("finish",))
    wandb.init = start
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return made


@pytest.mark.parametrize(
    ("kind", "settings", "again"),
    [
        (record.MLflow, {"run_name": "a"}, {"run_id": "run-1"}),
        (record.WandB, {"project": "a"}, {"project": "a", "id": "run-1", "resume": "allow"}),
    ],
)
def test_trackers_get_the_numbers_of_rows_and_a_resumed_run_continues_theirs(calls, kind, settings, again):
    sink = kind(fields=("loss",), **settings)
    assert calls == []
    sink.put({"step": 100, "loss": 0.5, "MAE window": 0.25, "diverging": None, "omega": float("nan")})
    state = sink.state_dict()
    sink.close()
    assert calls == [("start", settings), ("log", 100, {"loss": 0.5, "MAE window": 0.25}), ("finish",)]
    calls.clear()
    later = kind(fields=("loss",), **settings)
    later.load_state_dict(state)
    later.put({"step": 200, "loss": 0.25})
    assert calls == [("start", again), ("log", 200, {"loss": 0.25})]


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"WandB needs wandb: pip install"):
        record.WandB()


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
    assert record.Recorder(None, record.Progress(console=console)).state_dict() == {"step": 0, "sinks": []}
