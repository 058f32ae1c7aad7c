"""One new order, credit, integrator, operation and stream, added where CONTRIBUTING.md says, and nowhere else."""

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import checks, reference, streams
from hamlearn.credit import CREDITS, Credit
from hamlearn.experiments.run import run
from hamlearn.experiments.run.tables import SOURCES
from hamlearn.integrators import INTEGRATORS, Integrator
from hamlearn.loops.call import Call
from hamlearn.loops.coverage import coverage
from hamlearn.loops.pointwise import POINTWISE, elementwise
from hamlearn.loops.values import UnsupportedError, Value
from hamlearn.loops.writer import Writer
from hamlearn.rules import ORDERS
from hamlearn.rules.sequential import Sequential
from hamlearn.rules.system import Instant, Outcome
from hamlearn.state.carry import Carry
from tests.problems import random_problem, random_samples

aten = torch.ops.aten
MSE = nn.functional.mse_loss


def network():
    torch.manual_seed(0)
    return hl.Network.recurrent(nn.GRUCell(2, 3), nn.Linear(3, 1)).double()


def samples():
    return random_samples(8, 2, 1, (1,), dtype=torch.float64, missing=3, length=4)


def ran(tmp_path, text):
    """The final loss of a run from a file that names what is new."""
    config = tmp_path / "config.toml"
    config.write_text(f"[run]\nsteps = 20\nthreads = 1\n{text}\n[network]\nkind = 'rnn'\nhidden = 3\n")
    return run(config, out=tmp_path / "out", progress=False, overwrite=True).steps


# A credit: z fades from step to step.


@dataclasses.dataclass(frozen=True)
class Fading(Credit):
    """z keeps a part of itself from one step to the next.

    Args:
        part: How much of it.
    """

    part: float = 0.5
    carries = True

    def enter(self, z):
        return self.part * z


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_new_credit_follows_the_reference_in_every_order_and_engine(order, engine):
    problem = random_problem("gru", 3, 12, clock="events")
    problem.samples[-1] = dataclasses.replace(problem.samples[-1], boundary=True)
    setting = {"order": order, "credit": Fading(0.25)}
    learner = problem.learner(**setting)
    losses = [report.loss for report in learner.run(problem.samples, engine=engine)]
    network = copy.deepcopy(problem.network)
    judge = list(reference.run(network, problem.loss, problem.hyper, problem.samples, **setting))
    for loss, (_, seen) in zip(losses, judge, strict=True):
        assert (loss is None) == (seen.loss is None)
        assert loss is None or abs(loss.item() - seen.loss.item()) <= 1e-12
    state, _ = judge[-1]
    for name, weight in learner.network.named_parameters():
        assert (weight - state.theta[name]).abs().max() <= 1e-12
    # It is neither of those that there are.
    for other in (hl.Forward(), hl.Cleared()):
        twin = problem.learner(order=order, credit=other)
        for _ in twin.run(problem.samples):
            pass
        pairs = zip(twin.network.parameters(), learner.network.parameters(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_new_credit_passes_the_kit_and_can_be_named_in_a_file(monkeypatch, tmp_path):
    checks.check_learner(lambda: hl.Learner(network(), MSE, hl.Hyper(eta=0.5), credit=Fading()), samples())
    monkeypatch.setitem(CREDITS, "fading", Fading)
    text = "[stream]\nkind = 'signals.henon'\n[learner]\ncredit = 'fading'\npart = 0.1"
    assert ran(tmp_path, text) == 20


# An order: the weights follow the costate of the step before.


class Behind(Sequential):
    """As sequential order, but θ̇ = −β⊙ω with the ω from before the step."""

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        outcome = super().propose(carry, now).complete()
        outcome.dtheta = self.system.velocity.rates(carry.omega, now.t, self.system.theta, carry.v, now.updates)
        return outcome


class Counting(Sequential):
    """As sequential order, with a gain that falls with the tokens of the sequence so far, which it remembers."""

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        count = 0 if carry.memory is None else carry.memory["count"]
        outcome = super().propose(carry, now).complete()
        outcome.omega = [omega / (1 + count) for omega in outcome.omega]
        outcome.memory = {"count": count + 1}
        return outcome


def test_a_new_order_may_remember_something_from_token_to_token():
    make = lambda: hl.Learner(network(), MSE, hl.Hyper(eta=0.5), order=Counting)  # noqa: E731
    checks.check_learner(make, samples())
    with pytest.warns(RuntimeWarning, match="its order remembers something"):
        list(make().run(samples(), engine="compiled"))


def behind(system, credit, integrator, reset_h):
    return Behind(system, credit)


def test_a_new_order_follows_equations_written_by_hand():
    hyper = hl.Hyper(tau=0.5, eta=0.4, beta=0.1)
    learner, twin = hl.Learner(network(), MSE, hyper, order=Behind), network()
    state = reference.start(twin)
    fresh = True
    for sample in samples():
        learner.step(sample)
        h0 = torch.zeros(1, 3, dtype=torch.float64)
        state = dataclasses.replace(state, h=h0 if fresh else state.h, z=torch.zeros_like(h0))
        before = state
        state, _ = reference.sequential_step(twin, MSE, hyper, state, sample)
        # θ⁺ = θ − τβ ω, where sequential order has ω⁺.
        theta = {name: weight - 0.5 * 0.1 * before.omega[name] for name, weight in before.theta.items()}
        state = dataclasses.replace(state, theta=theta)
        fresh = sample.boundary
        for name, weight in learner.network.named_parameters():
            assert (weight - theta[name]).abs().max() <= 1e-12
    with pytest.raises(
        hl.errors.ConfigError,
        match=r"order='ahead' must be one of .* or a subclass of hl\.Order",
    ):
        hl.Learner(network(), MSE, hyper, order="ahead")


def test_a_new_order_passes_the_kit_runs_compiled_and_can_be_named_in_a_file(monkeypatch, tmp_path):
    def make():
        return hl.Learner(network(), MSE, hl.Hyper(eta=0.5), order=Behind)

    checks.check_learner(make, samples())
    eager, compiled = make(), make()
    for learner, engine in ((eager, "eager"), (compiled, "compiled")):
        for _ in learner.run(samples(), engine=engine):
            pass
    for a, b in zip(eager.network.parameters(), compiled.network.parameters(), strict=True):
        assert (a - b).abs().max() <= 1e-12
    assert make().order is Behind
    monkeypatch.setitem(ORDERS, "behind", behind)
    text = "[stream]\nkind = 'signals.henon'\n[learner]\norder = 'behind'"
    assert ran(tmp_path, text) == 20


# An integrator: Ralston's, of second order.


class Ralston(Integrator):
    """(k1 + 3 k2) / 4, with k2 at two thirds of the step. Second order."""

    order = 2

    def slope(self, derivative, t, x0, tau):
        k1 = derivative(t, x0)
        k2 = derivative(t + 2 / 3 * tau, [x + 2 / 3 * tau * k for x, k in zip(x0, k1, strict=True)])
        return [(a + 3 * b) / 4 for a, b in zip(k1, k2, strict=True)]


def test_a_new_integrator_passes_the_kit_and_can_be_named_in_a_file(monkeypatch, tmp_path):
    assert abs(checks.check_integrator(Ralston()) - 2) < 0.1

    def make():
        hyper = hl.Hyper(tau=0.1, eta=0.5, clock="continuous")
        choices = {"order": "parallel", "credit": hl.Forward(), "integrator": Ralston()}
        return hl.Learner(network(), MSE, hyper, **choices)

    checks.check_learner(make, samples())
    monkeypatch.setitem(INTEGRATORS, "ralston", Ralston)
    learner = "[learner]\norder = 'parallel'\ncredit = 'forward'\nintegrator = 'ralston'"
    hyper = "[hyper]\ntau = 0.1\nclock = 'continuous'"
    assert ran(tmp_path, f"[stream]\nkind = 'signals.henon'\n{learner}\n{hyper}") == 20


# An operation of compiled loops.


def copysign(writer: Writer, call: Call) -> Value:
    args = [call["self"], call["other"]]
    return elementwise(writer, "copysign{f}({0}, {1})", args, call.shape, call.dtype)


def test_a_new_operation_passes_the_kit_and_is_a_row_of_the_table(monkeypatch):
    x, y = torch.tensor([1.5, -2.0, 0.0, -0.0]), torch.tensor([-1.0, 3.0, -0.0, 2.0])
    op = aten.special_zeta  # has neither loops nor parts
    with pytest.raises(UnsupportedError):
        checks.check_operation(lambda a, b: op(a.abs() + 2, b.abs() + 1), x, y)
    assert aten.copysign not in POINTWISE
    monkeypatch.setitem(POINTWISE, aten.copysign, copysign)
    for dtype in (torch.float32, torch.float64):
        checks.check_operation(aten.copysign, x.to(dtype), y.to(dtype))
    (row,) = [row for row in coverage() if row.name == "copysign"]
    assert row.op is aten.copysign
    _, found = hl.loops.scan(lambda carry, at: (carry, aten.copysign(*at)), torch.zeros(1), (x[None], y[None]))
    assert torch.equal(found[0].signbit(), y.signbit())


def test_an_operation_that_is_wrong_is_found_out(monkeypatch):
    def forgetful(writer: Writer, call: Call) -> Value:
        return elementwise(writer, "{0}", [call["self"]], call.shape, call.dtype)

    monkeypatch.setitem(POINTWISE, aten.copysign, forgetful)
    with pytest.raises(checks.CheckFailedError, match="a loop is off the reference by"):
        checks.check_operation(aten.copysign, torch.ones(3), -torch.ones(3))


# A stream.


class Triangle(streams.Stream):
    """A triangle wave; the target is its next value."""

    _k = 0
    _moves, _fixed = ("_k",), ("_period",)

    def __init__(self, period: int) -> None:
        self._period = period

    @property
    def spec(self) -> streams.Spec:
        one = streams.TensorSpec((1,), torch.float32)
        return streams.Spec(one, one, math.inf)

    def _samples(self) -> Iterator[hl.Sample]:
        while True:
            self._k += 1
            yield hl.Sample(self._value(self._k - 1), self._value(self._k))

    def _value(self, k: int) -> torch.Tensor:
        return torch.tensor([abs(2 * (k % self._period) / self._period - 1)])


def triangle(period: int = 8) -> streams.Stream:
    """A triangle wave.

    Args:
        period: Samples in a cycle.
    """
    if period < 2:
        raise hl.errors.ConfigError(f"period={period} is no cycle. Give 2 or more samples.")
    return Triangle(period)


def test_a_new_stream_passes_the_kit_and_can_be_named_in_a_file(monkeypatch, tmp_path):
    streams.check(triangle)
    monkeypatch.setitem(SOURCES, "triangle", triangle)
    assert ran(tmp_path, "[stream]\nkind = 'triangle'\nperiod = 5\nlags = 2") == 20
    with pytest.raises(hl.errors.ConfigError, match=r"stream.period = 1 is not allowed. period=1 is no cycle"):
        ran(tmp_path, "[stream]\nkind = 'triangle'\nperiod = 1")
    assert [sample.u.item() for sample in itertools.islice(triangle(4), 5)] == [1.0, 0.5, 0.0, 0.5, 1.0]


def test_contributing_names_every_place_where_something_is_added():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Adding one of each") :]
    places = re.findall(r"`([A-Z]+)` in `(\S+\.py)`", table)
    assert dict(places) == {
        "ORDERS": "src/hamlearn/rules/__init__.py",
        "CREDITS": "src/hamlearn/credit.py",
        "INTEGRATORS": "src/hamlearn/integrators.py",
        "POINTWISE": "src/hamlearn/loops/pointwise.py",
        "SOURCES": "src/hamlearn/experiments/run/tables.py",
    }
    for name, path in places:
        assert re.search(rf"^{name}\b.* = ", (Path(__file__).parents[2] / path).read_text(), re.MULTILINE)
