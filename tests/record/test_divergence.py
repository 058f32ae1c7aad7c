"""A run that gets worse instead of better is told while it runs; no other is."""

import json
import math

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import record, streams
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import RECORD, REPORT, RESULT, run
from hamlearn.record.moments import Context, Moment
from hamlearn.streams import signals


class Report:
    def __init__(self, loss, skipped=False):
        self.loss, self.skipped = loss, skipped


def watched(losses, norms, n=10, watch=None):
    """The watch after blocks of these mean losses and norms of the weights."""
    weight = nn.Linear(1, 1, bias=False)
    learner = type("L", (), {"network": weight, "state": None})()
    watch = watch or record.Divergence(n)
    context = Context(learner, None, None)
    watch.open(context)
    since, step = [], 0
    for loss, norm in zip(losses, norms, strict=True):
        with torch.no_grad():
            weight.weight.fill_(norm)
        for k in range(n):
            step += 1
            watch.take(Moment(step, Report(loss * (0.5 + k / (n - 1))), None, context))
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


def test_an_alarm_ends_when_the_loss_is_back():
    assert watched([1, 5, 5, 5, 5, 3.9, 5], [2, 9, 9, 9, 9, 9, 9]) == [None, None, None, 40, 40, None, None]


def test_what_is_not_a_number_is_worse_and_what_was_skipped_does_not_count():
    assert watched([1, math.inf], [2, math.inf]) == [None, 20]
    learner = type("L", (), {"module": nn.Linear(1, 1), "state": None})()
    watch, context = record.Divergence(2), Context(learner, None, None)
    watch.open(context)
    for step in range(1, 20):
        watch.take(Moment(step, Report(math.inf, skipped=True), None, context))
        watch.take(Moment(step, Report(None), None, context))
    assert watch.since is None
    with pytest.raises(ConfigError, match="n=0 holds no sample"):
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
    assert f"since sample {result.diverging:,}" in (tmp_path / "out" / REPORT).read_text()


def test_a_run_that_learns_says_nothing(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(DIVERGES.format(steps=600, beta=0.0002, engine="compiled"))
    assert run(path, out=tmp_path / "out", progress=False).diverging is None
    assert '<p class="alarm">' not in (tmp_path / "out" / REPORT).read_text()


@pytest.mark.parametrize("signal", [signals.henon, signals.mackey_glass, signals.sinusoids, signals.squares])
@pytest.mark.parametrize("role", ["rnn", "mlp"])
def test_the_defaults_on_the_projects_signals_raise_no_alarm(signal, role):
    torch.manual_seed(0)
    network = (
        hl.Network.recurrent(nn.RNNCell(1, 16), nn.Linear(16, 1))
        if role == "rnn"
        else hl.Network.feedforward(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    )
    learner, watch, seen = hl.Learner(network, nn.functional.mse_loss), record.Divergence(), set()
    with record.Recorder(learner, watch) as recorder:
        for _ in recorder(learner.run(streams.take(signal(), 1500), engine="compiled")):
            seen.add(watch.since)
    assert seen == {None}
