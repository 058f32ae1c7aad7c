"""`Learner.scan`: the steps of a compiled run on whole tensors, all of them or none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError, SampleError
from tests.problems import Problem, random_problem

mse = nn.functional.mse_loss
SETTINGS: list[dict[str, Any]] = [
    {"order": "sequential", "credit": hl.Forward()},
    {"order": "sequential", "credit": hl.Cleared()},
    {"order": "sequential", "credit": hl.Echo()},
    {"order": "sequential", "credit": hl.Echo(truncate=3, every=4)},
    {"order": "parallel", "credit": hl.Forward()},
    {"order": "parallel", "credit": hl.Cleared()},
]


def name_of(setting: Any) -> str:
    return f"{setting['order']}-{setting['credit']!r}"


def arrays(samples: list[hl.Sample]) -> dict[str, Any]:
    """What `scan` takes, of samples; where there is no target stands something that must not be looked at."""
    known = torch.tensor([sample.target is not None for sample in samples])
    given: dict[str, Any] = {"u": torch.stack([sample.u for sample in samples])}
    given["boundary"] = torch.tensor([sample.boundary for sample in samples])
    if known.any():
        example = next(sample.target for sample in samples if sample.target is not None)
        none = torch.full_like(example, torch.nan) if example.is_floating_point() else torch.full_like(example, -7)
        given["target"] = torch.stack([none if s.target is None else s.target for s in samples])
        given["known"] = None if known.all() else known
    return given


def evened(problem: Problem) -> Problem:
    """The same problem without τ of its own; in another test τ is uneven."""
    samples = [replace(sample, tau=None) for sample in problem.samples]
    samples[-1].boundary = True
    return replace(problem, samples=samples)


def everything(learner: hl.Learner) -> dict[str, Any]:
    state = learner.state_dict()
    return state["tensors"] | {key: state["about"][key] for key in ("t", "updates", "fresh")}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def assert_traced(trace: hl.Trace, reports: list[hl.StepReport], tolerance: float) -> None:
    assert len(trace) == len(reports)
    for step, report in enumerate(reports):
        assert trace.t[step].item() == report.t
        torch.testing.assert_close(trace.y[step], report.y, rtol=tolerance, atol=tolerance)
        H = torch.as_tensor(report.hamiltonian, dtype=trace.hamiltonian.dtype)
        torch.testing.assert_close(trace.hamiltonian[step], H, rtol=tolerance, atol=tolerance)
        if report.loss is None:
            assert trace.loss is None or bool(trace.loss[step].isnan())
        else:
            assert trace.loss is not None
            torch.testing.assert_close(trace.loss[step], report.loss, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", ["rate", "tree", "lstm", "output", "split", "frozen"])
def test_a_scan_takes_the_steps_of_a_compiled_run_to_the_bit_and_those_of_the_eager_one(
    kind: str, setting: dict[str, Any]
) -> None:
    """Random networks, schedules, β by name and tensor, missing targets and boundaries."""
    problem = evened(random_problem(kind, 3, 40))
    if isinstance(setting["credit"], hl.Echo) and (problem.network.state is None or problem.hyper.s != -1):
        pytest.skip("an echo follows a state, with s = -1")
    scanned, compiled, eager = (problem.learner(**setting) for _ in range(3))
    trace = scanned.scan(**arrays(problem.samples))
    rows = list(compiled.run(problem.samples, engine="compiled"))
    assert_traced(trace, rows, 0.0)
    assert_equal(everything(scanned), everything(compiled))
    assert_traced(trace, [eager.step(sample) for sample in problem.samples], 1e-11)
    assert_close(everything(eager), everything(scanned))


def recurrent(**setting: Any) -> hl.Learner:
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.GRUCell(3, 4), nn.Linear(4, 2)).double()
    hyper = hl.Hyper(tau=0.5, eta=0.4, beta=0.1, phi=1.5, phi_first=2.0)
    return hl.Learner(network, mse, hyper, **({"credit": hl.Forward()} | setting))


def drawn(steps: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(steps, 2, 3, generator=generator, dtype=torch.float64)
    return u, torch.sin(u[..., :2])


def test_uneven_times_are_those_of_a_run() -> None:
    u, target = drawn()
    tau = torch.rand(30, dtype=torch.float64) + 0.1
    one, other = recurrent(), recurrent()
    trace = one.scan(u, target, tau)
    samples = [hl.Sample(a, b, c.item()) for a, b, c in zip(u, target, tau, strict=True)]
    assert_traced(trace, list(other.run(samples, engine="compiled")), 0.0)
    assert_equal(everything(one), everything(other))


def test_without_targets_the_state_moves_and_nothing_is_learned() -> None:
    learner, (u, _) = recurrent(), drawn()
    before = copy.deepcopy(list(learner.network.parameters()))
    trace = learner.scan(u)
    assert trace.loss is None
    assert learner.state.t == 15.0
    assert learner.state.updates == 0
    assert not torch.equal(trace.y[0], trace.y[1])
    assert all(torch.equal(a, b) for a, b in zip(before, learner.network.parameters(), strict=True))


class TreeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, u: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(u["a"]) + u["b"]
        return y, y.tanh()


def test_inputs_outputs_and_targets_may_be_trees() -> None:
    torch.manual_seed(0)
    network = hl.Network.feedforward(TreeNet())
    learner = hl.Learner(network, lambda y, target: sum(mse(a, target[k]) for a, k in zip(y, "pq", strict=True)))
    u = {"a": torch.randn(20, 4, 3), "b": torch.randn(20, 4, 2)}
    target = {"p": torch.randn(20, 4, 2), "q": torch.randn(20, 4, 2)}
    twin = copy.deepcopy(learner)
    trace = learner.scan(u, target)
    first, second = trace.y
    assert first.shape == second.shape == (20, 4, 2)
    for step in range(20):
        at = [{k: v[step] for k, v in tree.items()} for tree in (u, target)]
        report = twin.step(hl.Sample(*at))
        torch.testing.assert_close(trace.loss[step], report.loss)
        torch.testing.assert_close(first[step], report.y[0])


def sometimes_drops(rate: float) -> hl.Network:
    return hl.Network.recurrent(nn.RNNCell(3, 4), nn.Sequential(nn.Dropout(rate), nn.Linear(4, 2))).double()


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Echo(), hl.Echo(truncate=4, every=3)], ids=repr)
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.filterwarnings("ignore:engine='compiled' falls back to the eager engine")
def test_a_scan_with_a_bad_sample_changes_nothing_and_says_which(credit: Any, eager: bool, before: int) -> None:
    torch.manual_seed(0)
    learner = hl.Learner(
        sometimes_drops(0.5 if eager else 0.0).train(eager), mse, hl.Hyper(beta=0.1), credit=credit
    )
    u, target = drawn()
    if before:
        learner.scan(u[:before], target[:before])
    kept, random = everything(learner), torch.get_rng_state()
    u[17] = torch.nan
    boundary = torch.arange(30) == 12
    with pytest.raises(NonFiniteError) as raised:
        learner.scan(u, target, boundary=boundary)
    assert raised.value.__notes__ == ["This was step 17 of 30 of a scan(), of which none was made."]
    assert torch.equal(random, torch.get_rng_state())
    assert_equal(kept, everything(learner))
    tau = [0.5] * 30
    tau[4] = -1.0
    with pytest.raises(SampleError, match=r"-1"):
        learner.scan(u[:17], target[:17], tau[:17])
    assert_equal(kept, everything(learner))


def test_a_skipped_sample_is_told_of_and_the_others_are_learned() -> None:
    u, target = drawn()
    u[17] = torch.nan
    one, other = recurrent(on_nonfinite="skip"), recurrent(on_nonfinite="skip")
    trace = one.scan(u, target)
    assert trace.skipped.nonzero().flatten().tolist() == [17]
    rows = list(other.run([hl.Sample(a, b) for a, b in zip(u, target, strict=True)], engine="compiled"))
    assert_equal(everything(one), everything(other))
    assert torch.equal(trace.loss[18:], torch.stack([row.loss for row in rows[18:]]))


WRONG: dict[str, tuple[Callable[[Any, Any], dict[str, Any]], str]] = {
    "no tensor": (lambda u, y: {"u": [1.0, 2.0]}, "u is .*: give tensors, alone or in a tree"),
    "no axis": (lambda u, y: {"u": torch.tensor(1.0)}, r"u is float32\[\]"),
    "no steps": (lambda u, y: {"u": u[:0]}, "u has no steps"),
    "other length": (lambda u, y: {"u": u, "target": y[:-1]}, "has 29 steps where u has 30"),
    "tau": (lambda u, y: {"u": u, "target": y, "tau": [1.0, 2.0]}, r"tau is float64\[2\]: give a number, or 30"),
    "boundary": (lambda u, y: {"u": u, "boundary": torch.zeros(30)}, "boundary is .*: give 30 truth values"),
    "known": (lambda u, y: {"u": u, "target": y, "known": [True]}, "known is .*: give 30 truth values"),
    "known without target": (lambda u, y: {"u": u, "known": [True] * 30}, "no target was given"),
    "shape": (lambda u, y: {"u": u[..., :2], "target": y}, "could not take"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arrays_that_do_not_belong_together_are_refused(wrong: str) -> None:
    learner, given = recurrent(), WRONG[wrong][0](*drawn())
    kept = everything(learner)
    with pytest.raises(SampleError, match=WRONG[wrong][1]):
        learner.scan(**given)
    assert_equal(kept, everything(learner))


def test_a_hamiltonian_with_a_scheduled_phi_is_that_of_single_steps() -> None:
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(3, 2)), mse, hl.Hyper(phi=lambda t: 1 / (3 + t)))
    u, target = (x.float() for x in drawn())
    twin = copy.deepcopy(learner)
    trace = learner.scan(u, target)
    rows = twin.run([hl.Sample(a, b) for a, b in zip(u, target, strict=True)], engine="compiled")
    assert torch.equal(trace.hamiltonian, torch.stack([row.hamiltonian for row in rows]))


@pytest.mark.parametrize("tau", [0.4, [0.4] * 10], ids=["number", "list"])
def test_a_time_step_given_as_a_python_number_is_not_shortened(tau):
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(2, 1).double())
    scanned = hl.Learner(network, mse, hl.Hyper(tau=0.5, eta=0.5, beta=0.1))
    stepped = copy.deepcopy(scanned)
    u, target = torch.randn(10, 1, 2, dtype=torch.float64), torch.randn(10, 1, 1, dtype=torch.float64)
    scanned.scan(u, target, tau=tau)
    for one, wanted in zip(u, target, strict=True):
        stepped.step(hl.Sample(one, wanted, tau=0.4))
    assert scanned.state.t == stepped.state.t
    torch.testing.assert_close(
        scanned.network.output.weight, stepped.network.output.weight, rtol=1e-12, atol=1e-12
    )


def test_where_no_step_has_a_target_but_some_were_given_losses_are_no_numbers():
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), mse)
    u, target = torch.randn(5, 1, 2), torch.randn(5, 1, 1)
    trace = learner.scan(u, target, known=torch.zeros(5, dtype=torch.bool))
    assert trace.loss.shape == (5,)
    assert trace.loss.isnan().all()
    assert learner.scan(u).loss is None


KEPT = ("h", "z", "omega", "theta", "v", "E")


def parts_of(learner: hl.Learner) -> dict[str, Any]:
    carry = learner._eager.led_to
    names = [name for name, _ in learner.network.named_parameters()]
    named = {"omega": carry.omega, "theta": list(learner.network.parameters()), "v": carry.v}
    found: dict[str, Any] = {key: dict(zip(names, tensors, strict=False)) for key, tensors in named.items()}
    for key, leaves in (("h", carry.h), ("z", carry.z)):
        found[key] = hl._base.trees.unflatten(leaves, carry.spec)
    return found | {"E": carry.E}


@pytest.mark.parametrize("setting", [*SETTINGS, {"credit": hl.Sensitivity(strict=False)}], ids=str)
@pytest.mark.parametrize("hyper", [hl.Hyper(tau=0.5, eta=0.3), hl.Hyper.from_adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.filterwarnings("ignore:.*follows an echo token by token")
def test_a_scan_keeps_what_every_step_led_to(setting: Any, hyper: hl.Hyper) -> None:
    problem = replace(evened(random_problem("gru", 5, 14)), hyper=hyper)
    learner, judge = problem.learner(**setting), problem.learner(**setting)
    trace = learner.scan(**arrays(problem.samples), keep=KEPT)
    for step, sample in enumerate(problem.samples):
        judge.step(sample)
        wanted = parts_of(judge)
        kept = {name: torch.utils._pytree.tree_map(lambda x, k=step: x[k], getattr(trace, name)) for name in KEPT}
        torch.testing.assert_close(kept, wanted, rtol=1e-12, atol=1e-12)
    plain = problem.learner(**setting)
    assert plain.scan(**arrays(problem.samples)).h is None
    if not isinstance(learner.credit, hl.Echo):
        assert_equal(everything(plain), everything(learner))


def test_a_scan_keeps_trees_of_the_state_and_skipped_steps() -> None:
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.LSTMCell(2, 3), nn.Linear(3, 1))
    learner = hl.Learner(network, mse, hl.Hyper(), credit=hl.Forward(), on_nonfinite="skip")
    u, target = torch.randn(6, 1, 2), torch.zeros(6, 1, 1)
    u[3] = torch.nan
    trace = learner.scan(u, target, keep=("h", "omega"))
    h, c = trace.h
    assert h.shape == c.shape == (6, 1, 3)
    assert trace.skipped.tolist() == [False] * 3 + [True] + [False] * 2
    assert torch.equal(h[3], h[2])
    assert not torch.equal(h[4], h[2])
    assert trace.omega.keys() == dict(network.named_parameters()).keys()
    assert trace.z is None
    memoryless = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), mse)
    assert memoryless.scan(torch.ones(4, 1, 2), torch.ones(4, 1, 1), keep=("h",)).h is None


@pytest.mark.parametrize(("keep", "message"), [("h", "keep='h' must"), (("h", "y"), "keep has 'y', which must")])
def test_a_scan_names_what_it_cannot_keep(keep: Any, message: str) -> None:
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), mse)
    with pytest.raises(hl.errors.ConfigError, match=message):
        learner.scan(torch.ones(4, 1, 2), keep=keep)
