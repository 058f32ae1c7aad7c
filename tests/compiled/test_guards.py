"""When a compiled step is recorded again, when it stays eager, and what an audit finds."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops import step_cache
from tests.trust.learners import learner_of, mse, ran, samples, weights

GAIN = 1.0


class Scaled(nn.Module):
    """A linear layer whose output is scaled by what `read(self)` gives."""

    def __init__(self, read):
        super().__init__()
        self.linear = nn.Linear(2, 1, dtype=torch.float64)
        self.read, self.own, self.table, self.log = read, 1.0, torch.ones(1, dtype=torch.float64), []

    def forward(self, u):
        return self.read(self) * self.linear(u)


def both_engines(make, change, learn=ran):
    """Final weights by both engines, with a change between two runs."""
    results = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        set_global(1.0)
        module, *loss = make()
        learner = learner_of(module, *loss)
        learn(learner, samples(6), engine)
        change(module, *loss)
        learn(learner, samples(6, seed=1), engine)
        results.append(weights(learner))
    return results


def set_global(value):
    global GAIN
    GAIN = value


CHANGES = {
    "an attribute": (lambda m: m.own, lambda m: setattr(m, "own", 3.0)),
    "a global": (lambda m: GAIN, lambda m: set_global(3.0)),
    "a tensor that is no buffer": (lambda m: m.table, lambda m: m.table.fill_(3.0)),
    "another tensor in its place": (lambda m: m.table, lambda m: setattr(m, "table", 3.0 * m.table)),
    "a mode": (lambda m: 1.0 if m.training else 3.0, lambda m: m.eval()),
    "a function": (lambda m: m.read(None) if m is None else m.own, lambda m: setattr(m, "read", lambda _: 3.0)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_two_runs_holds_in_the_second(what):
    read, change = CHANGES[what]
    try:
        eager, compiled = both_engines(lambda: [Scaled(read)], change)
    finally:
        set_global(1.0)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-12)


def count(m):
    m.own += 1.0
    return 1.0


def grow(m):
    m.log.append(1.0)
    return 1.0


def draw(m):
    return random.random()


def keep_a_mean(m):
    m.table = 0.5 * m.table + 0.5
    return m.table


STAYS_EAGER = {
    keep_a_mean: r"a step changes the network\.output\.table",
    count: r"a step changes the network\.output\.own",
    grow: r"the length of .*\.log",
    draw: "another",
}


@pytest.mark.parametrize("read", STAYS_EAGER, ids=lambda read: read.__name__)
def test_a_step_that_changes_what_it_reads_stays_eager_and_says_which(read):
    random.seed(0)
    module = Scaled(read)
    with pytest.warns(RuntimeWarning, match=STAYS_EAGER[read]):
        ran(learner_of(module), samples(5))
    # Every sample has called it once, and the trial before them has left nothing behind.
    assert (module.own, len(module.log)) in [(6.0, 0), (1.0, 5), (1.0, 0)]


@pytest.mark.filterwarnings("ignore:engine='compiled' falls back to the eager engine")
@pytest.mark.parametrize("read", [draw, lambda m: float(np.random.rand())], ids=["python", "numpy"])
def test_the_trial_of_a_step_leaves_the_random_numbers_of_python_and_numpy_to_the_steps(read):
    results = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        learner = learner_of(Scaled(read))
        ran(learner, samples(5), engine)
        results.append(weights(learner))
    assert torch.equal(*results)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    "kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_hooks_are_called_at_every_step_from_when_they_are_added(kind):
    calls = []
    module = nn.Linear(2, 1).double()
    learner = learner_of(module)
    ran(learner, samples(4))
    handle = getattr(module, kind)(lambda *given: calls.append(1))
    with pytest.warns(RuntimeWarning, match="hooks"):
        ran(learner, samples(4))
    assert len(calls) == 4
    handle.remove()
    ran(learner, samples(4))
    assert len(calls) == 4


def test_a_change_through_the_learner_holds_from_the_next_sample_on():
    results = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        learner = learner_of(Scaled(lambda m: m.own))
        for number, _ in enumerate(learner.run(samples(12), engine=engine, chunk=4)):
            if number == 5:
                learner.network.output.own = 2.0
        results.append(weights(learner))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


# What the guards do not compare.


def with_setting(setting, network=None, **choices):
    """A learner whose loss reads an entry of a dict."""
    return learner_of(
        network or nn.Linear(2, 1).double(), lambda y, target: setting["scale"] * mse(y, target), **choices
    )


def test_an_entry_of_a_dict_is_fixed_until_the_step_is_recompiled():
    setting = {"scale": 1.0}
    learner = with_setting(setting)
    ran(learner, samples(4))
    setting["scale"] = 0.0
    assert all(report.loss > 0 for report in ran(learner, samples(4)))
    learner.recompile()
    assert all(report.loss == 0 for report in ran(learner, samples(4)))


def test_recompiling_within_a_run_holds_from_the_next_block_on():
    setting = {"scale": 1.0}
    learner = with_setting(setting)
    losses = []
    for number, report in enumerate(learner.run(samples(12), engine="compiled", chunk=4)):
        losses.append(float(report.loss))
        if number == 5:
            setting["scale"] = 0.0
            learner.recompile()
    assert all(losses[:6])
    assert not any(losses[6:])


LEARNERS = {
    "sequential": lambda setting: with_setting(setting),
    "parallel": lambda setting: with_setting(setting, order="parallel", credit=hl.Forward()),
    "echo": lambda setting: with_setting(
        setting,
        network=hl.Network.recurrent(nn.RNNCell(2, 3).double(), nn.Linear(3, 1).double()),
        credit=hl.Echo(every=2),
    ),
    "local": lambda setting: hl.local.LocalLearner(
        nn.Sequential(nn.Linear(2, 1), nn.Tanh()).double(), lambda y, t: setting["scale"] * mse(y, t), hl.Hyper()
    ),
    "population": lambda setting: hl.Population(lambda hyper: with_setting(setting), [None], [0, 1]),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_an_audit_finds_what_has_changed_since_the_recording(name, monkeypatch):
    monkeypatch.setattr(step_cache, "AUDIT_EVERY", 4)
    setting = {"scale": 1.0}
    learner = LEARNERS[name](setting)
    reports = learner.run(samples(80), engine="compiled", chunk=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            next(reports)
        setting["scale"] = 3.0
        with pytest.raises(hl.errors.AuditError, match="recompile"):
            list(reports)
    learner.recompile()
    assert len(list(learner.run(samples(20), engine="compiled", chunk=2))) == 20


def test_scans_are_audited(monkeypatch):
    monkeypatch.setattr(step_cache, "AUDIT_EVERY", 2)
    setting = {"gain": 1.0}

    def step(carry, x):
        return carry + setting["gain"] * x, None

    scan = lambda: hl.loops.scan(step, torch.zeros(1), torch.ones(3, 1))[0].item()  # noqa: E731
    assert [scan() for _ in range(4)] == [3.0] * 4
    setting["gain"] = 2.0
    with pytest.raises(hl.errors.AuditError, match="another carry"):
        [scan() for _ in range(4)]


class LastOfSequence(nn.Module):
    """A whole-sequence LSTM in a module."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 3), nn.Linear(3, 1)

    def forward(self, u):
        return self.out(self.lstm(u[None])[0][-1])


@pytest.mark.parametrize("learn", ["run", "scan"])
def test_an_lstm_of_whole_sequences_in_float32_is_compiled(learn):
    stream, finals = samples(9, dtype=torch.float32), []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        learner = learner_of(LastOfSequence())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if learn == "scan" and engine == "compiled":
                learner.scan(torch.stack([s.u for s in stream]), torch.stack([s.target for s in stream]))
            else:
                ran(learner, stream, engine)
        finals.append(weights(learner))
    torch.testing.assert_close(*finals, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learn", ["run", "scan"])
def test_under_autocast_a_learner_falls_back_and_learns_as_the_eager_one(learn):
    stream, finals = samples(9, dtype=torch.float32), []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        learner = learner_of(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if engine == "eager":
                ran(learner, stream, engine)
            elif learn == "scan":
                u, target = (torch.stack([getattr(s, name) for s in stream]) for name in ("u", "target"))
                with pytest.warns(RuntimeWarning, match="bfloat16"):
                    learner.scan(u, target)
            else:
                with pytest.warns(RuntimeWarning, match="bfloat16"):
                    ran(learner, stream, engine)
        finals.append(weights(learner))
    assert torch.equal(*finals)
