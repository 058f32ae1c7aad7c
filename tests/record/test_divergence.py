"""A run that gets worse instead of better raises an alarm while it runs; no other does."""

import json
import math

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import record, streams
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import RECORD, REPORT, RESULT, Result, run
from hamlearn.record.fields import Moment
from hamlearn.streams import signals
from tests.cli import invoke


class Report:
    y = torch.zeros(1, 3)

    def __init__(self, loss, skipped=False):
        self.loss, self.skipped = loss, skipped


NOISE = (1.0, 0.5, 1.5, 0.6, 1.4, 0.7, 1.3, 0.8, 1.2, 1.0)
RISE = tuple(0.5 + k / 9 for k in range(10))


def watched(losses, norms, watch=None, course=NOISE, loss=None):
    """The watch after blocks of ten samples with these mean losses and norms of the weights."""
    weight = nn.Linear(1, 1, bias=False)
    learner = type("L", (), {"network": weight, "state": None, "loss": loss})()
    watch = watch or record.Divergence(10)
    with torch.no_grad():
        weight.weight.fill_(norms[0])
    recorder, since, step = record.Recorder(learner, watch), [], 0
    for mean, norm in zip(losses, norms, strict=True):
        with torch.no_grad():
            weight.weight.fill_(norm)
        for share in course:
            step += 1
            watch.take(Moment(step, Report(mean * share), recorder))
        since.append(watch.since)
    return since


def test_three_blocks_of_four_times_the_first_loss_with_four_times_the_weights_are_divergence():
    assert watched([1, 5, 5, 5, 9], [2, 9, 9, 9, 9]) == [None, None, None, 40, 40]
    # Two blocks are noise; a loss of less than four times the first is no alarm; weights must have grown.
    assert watched([1, 5, 5, 3, 5, 5], [2, 9, 9, 9, 9, 9]) == [None] * 6
    assert watched([1, 3.9, 3.9, 3.9, 3.9], [2, 9, 9, 9, 9]) == [None] * 5
    assert watched([1, 5, 5, 5, 5], [2, 7.9, 7.9, 7.9, 7.9]) == [None] * 5
    # Weights that begin near zero grow many times over as they learn.
    assert watched([1, 5, 5, 5, 5], [1e-3, 3, 3, 3, 3]) == [None] * 5


def test_a_loss_a_thousand_times_the_first_is_divergence_at_once():
    assert watched([1, 1001], [2, 9]) == [None, 20]
    assert watched([1, 999], [2, 9]) == [None, None]


def test_an_alarm_ends_when_two_of_three_blocks_are_below_the_threshold():
    assert watched([1, 5, 5, 5, 5, 3.9, 5], [2, *[9] * 6]) == [None, None, None, 40, 40, 40, 40]
    assert watched([1, 5, 5, 5, 3.9, 5, 3.9, 5], [2, *[9] * 7]) == [None, None, None, 40, 40, 40, None, None]


def test_a_first_loss_that_no_update_has_touched_bounds_the_reference():
    # The first loss is 1, the mean of the first ten is 2: the threshold is 4, not 8.
    assert watched([2, 4.1, 4.1, 4.1], [2, 9, 9, 9], course=RISE) == [None, None, None, 40]
    assert watched([2, 3.9, 3.9, 3.9], [2, 9, 9, 9], course=RISE) == [None] * 4
    assert watched([2, 4.1, 4.1, 4.1], [2, 9, 9, 9]) == [None] * 4


def test_a_first_loss_that_is_tiny_by_chance_counts_as_half_the_mean_of_ten():
    # Half of the mean is 0.45: the threshold is 1.8, and not next to nothing.
    course = (1e-9, *[1.0] * 9)
    assert watched([1, *[1.9] * 6], [2, *[9] * 6], course=course) == [None] * 7
    assert watched([1, *[2.1] * 3], [2, *[9] * 3], course=course) == [None, None, None, 40]


def test_a_learner_of_classes_that_is_worse_than_guessing_diverges():
    chance = math.log(3)
    for share, since in ((1.6, 40), (1.4, None)):
        assert watched([chance, *[share * chance] * 3], [2, 9, 9, 9], loss=nn.CrossEntropyLoss())[-1] == since
    # The weights must have grown; how it ended is told all the same.
    watch = record.Divergence(10)
    assert watched([chance, 2, 2, 2], [2, 2, 2, 2], watch, loss=nn.CrossEntropyLoss()) == [None] * 4
    assert watch.ended == (pytest.approx(2, abs=1e-12), 1.5 * chance)


def classes(count, scale):
    """Points of three classes; `scale` stretches and shifts the second input, which is not standardised."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(4, 3, generator=generator)
    for _ in range(count):
        x = torch.randn(1, 4, generator=generator)
        target = (x @ directions + 0.3 * torch.randn(1, 3, generator=generator)).argmax(1)
        stretch = torch.tensor([1.0, scale, 1.0, 1.0])
        yield hl.Sample(x * stretch + (stretch - 1), target)


def alarms(beta, scale, engine, loss):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    learner = hl.Learner(hl.Network.feedforward(module), loss, hl.Hyper(beta=beta))
    watch, seen = record.Divergence(), set()
    with record.Recorder(learner, watch) as recorder:
        for _ in recorder(learner.run(list(classes(400, scale)), engine=engine)):
            seen.add(watch.since)
    return seen


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss()], ids=["function", "module"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_classifier_whose_rate_is_too_high_raises_the_alarm_and_one_that_learns_does_not(engine, loss):
    for beta, scale in ((5.0, 1.0), (50.0, 1.0), (0.5, 100.0)):
        assert alarms(beta, scale, engine, loss) != {None}, (beta, scale)
    for beta, scale in ((0.05, 1.0), (0.2, 1.0), (0.01, 100.0)):
        assert alarms(beta, scale, engine, loss) == {None}, (beta, scale)


def test_a_run_that_ended_worse_without_larger_weights_says_so(tmp_path, monkeypatch):
    result = Result(tmp_path, 500, ended=(2.0, 1.65))
    monkeypatch.setattr("hamlearn.experiments.run.run", lambda *_: result)
    told = invoke("run", "config.toml").stderr
    assert told.startswith("The run ended worse than it began: a mean loss of 2")
    assert "Lower hyper.beta" in told


def test_what_is_not_a_number_is_worse_and_what_was_skipped_does_not_count():
    assert watched([1, math.inf], [2, math.inf]) == [None, 20]
    learner = type("L", (), {"module": nn.Linear(1, 1), "state": None})()
    watch = record.Divergence(2)
    recorder = record.Recorder(learner, watch)
    for step in range(1, 20):
        watch.take(Moment(step, Report(math.inf, skipped=True), recorder))
        watch.take(Moment(step, Report(None), recorder))
    assert watch.since is None
    with pytest.raises(ConfigError, match="n=0 must be at least 1 sample"):
        record.Divergence(0)


def test_a_watch_goes_on_from_its_state_as_if_it_had_not_been_stopped():
    losses, norms = [1, 5, 5, 5, 9], [2, 9, 9, 9, 9]
    for cut in range(1, 5):
        first = record.Divergence(10)
        watched(losses[:cut], norms[:cut], watch=first)
        again = record.Divergence(10)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = watched(losses[cut:], norms[cut:], watch=again)
        assert [since is not None for since in rest] == [block >= 3 for block in range(cut, 5)]


DIVERGES = """
[run]
steps = {steps}
threads = 1
[stream]
kind = "signals.henon"
[network]
kind = "linear"
[hyper]
eta = 0.02
beta = {beta}
[learner]
engine = "{engine}"
[records]
every = 20
[checkpoint]
every = 300
"""


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_run_that_diverges_says_so_in_its_record_its_result_and_its_report(tmp_path, engine):
    path = tmp_path / "config.toml"
    path.write_text(DIVERGES.format(steps=600, beta=0.1, engine=engine))
    result = run(path, out=tmp_path / "out", progress=False)
    assert result.diverging is not None
    assert math.isfinite(record.read(tmp_path / "out" / RECORD)[-1]["loss"])
    assert json.loads((tmp_path / "out" / RESULT).read_text())["diverging"] == result.diverging
    rows = record.read(tmp_path / "out" / RECORD)
    assert {row["diverging"] for row in rows if row["step"] < result.diverging} == {None}
    assert {row["diverging"] for row in rows if row["step"] >= result.diverging} == {result.diverging}
    assert f'"diverging": {result.diverging}' in (tmp_path / "out" / REPORT).read_text()


@pytest.mark.parametrize("signal", [signals.henon, signals.mackey_glass, signals.sinusoids, signals.squares])
def test_the_defaults_on_the_projects_signals_raise_no_alarm(signal):
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.RNNCell(1, 16), nn.Linear(16, 1))
    learner, watch, seen = hl.Learner(network, nn.functional.mse_loss), record.Divergence(), set()
    with record.Recorder(learner, watch) as recorder:
        for _ in recorder(learner.run(streams.take(signal(), 1500), engine="compiled")):
            seen.add(watch.since)
    assert seen == {None}
