"""The compiled engine takes the steps of the eager one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.problems import NETWORKS, Problem, make_network, random_problem, random_samples

SETTINGS = [
    {"order": "sequential", "credit": hl.Forward()},
    {"order": "sequential", "credit": hl.Cleared()},
    {"order": "parallel", "credit": hl.Forward()},
    {"order": "parallel", "credit": hl.Cleared()},
]


def name_of(setting: Any) -> str:
    return f"{setting['order']}-{type(setting['credit']).__name__}"


def both(problem: Problem, chunk: int, **setting: Any) -> tuple[hl.Learner, hl.Learner, list[Any], list[Any]]:
    problem.samples[-1].boundary = True
    eager, compiled = problem.learner(**setting), problem.learner(**setting)
    one = list(eager.run(problem.samples))
    other = list(compiled.run(problem.samples, engine="compiled", chunk=chunk))
    return eager, compiled, one, other


def assert_same(eager: hl.Learner, compiled: hl.Learner, tolerance: float) -> None:
    close: dict[str, float] = {"rtol": tolerance, "atol": tolerance}
    for a, b in zip(eager.network.parameters(), compiled.network.parameters(), strict=True):
        torch.testing.assert_close(b, a, **close)
    for a, b in zip(eager.network.buffers(), compiled.network.buffers(), strict=True):
        torch.testing.assert_close(b, a, **close)
    one, other = eager.state, compiled.state
    assert other.t == one.t
    assert other.updates == one.updates
    for name in one.omega:
        torch.testing.assert_close(other.omega[name], one.omega[name], **close)
    for a, b in ((one.h, other.h), (one.z, other.z)):
        torch.testing.assert_close(b, a, **close)
    assert compiled.position == eager.position


def assert_same_reports(one: list[Any], other: list[Any], tolerance: float) -> None:
    close: dict[str, float] = {"rtol": tolerance, "atol": tolerance}
    assert [report.t for report in other] == [report.t for report in one]
    assert all(b.sample is a.sample for a, b in zip(one, other, strict=True))
    assert not any(report.skipped for report in other)
    assert [report.loss is None for report in other] == [report.loss is None for report in one]
    # All reports at once: a comparison of its own for each would take longer than the steps.
    for told in (
        lambda report: report.y,
        lambda report: torch.zeros(()) if report.loss is None else report.loss,
        lambda report: torch.as_tensor(report.hamiltonian, dtype=torch.float64),
    ):
        a, b = (torch.stack([told(report) for report in reports]) for reports in (one, other))
        torch.testing.assert_close(b, a, **close)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", NETWORKS)
def test_compiled_steps_are_the_eager_ones_on_random_problems(kind: str, setting: dict[str, Any]) -> None:
    """Schedules, β by name and tensor, uneven τ, missing targets and boundaries, in odd shapes and chunks."""
    for seed, reset in ((3, "boundary"), (5, "boundary" if setting["order"] == "parallel" else "sample")):
        eager, compiled, one, other = both(random_problem(kind, seed, 60), 7, reset_h=reset, **setting)
        assert_same(eager, compiled, 1e-11)
        assert_same_reports(one, other, 1e-11)


def long_problem(kind: str, steps: int, dtype: torch.dtype) -> Problem:
    torch.manual_seed(0)
    network = make_network(kind, 3, 5, 2, (2,)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    samples = []
    for step in range(steps):
        u = torch.randn(2, 3, generator=generator, dtype=torch.float64).to(dtype)
        target = torch.sin(u[:, :2]) if step % 7 else None
        samples.append(hl.Sample(u, target, boundary=step % 64 == 63))
    hyper = hl.Hyper(tau=0.5, eta=0.4, eta_z=0.8, beta=0.05, phi=1.5, phi_first=2.0)
    return Problem(network, nn.functional.mse_loss, hyper, samples)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", ["rate", "lstm", "output"])
def test_engines_agree_over_2000_steps(kind: str, setting: dict[str, Any]) -> None:
    problem = long_problem(kind, 2000, torch.float64)
    # Boundaries and missing targets fall on the edges of chunks of 64 and within those of 97.
    eager, compiled, one, other = both(problem, 64, **setting)
    assert_same(eager, compiled, 1e-12)
    assert_same_reports(one, other, 1e-12)
    again = problem.learner(**setting)
    list(again.run(problem.samples, engine="compiled", chunk=97))
    for a, b in zip(compiled.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("integrator", [hl.Heun(), hl.RK4()], ids=repr)
def test_integrators_of_several_stages_are_compiled(integrator: Any) -> None:
    problem = long_problem("rate", 100, torch.float64)
    problem = replace(problem, hyper=replace(problem.hyper, clock="continuous"))
    eager, compiled, one, other = both(problem, 33, order="parallel", integrator=integrator)
    assert_same(eager, compiled, 1e-12)
    assert_same_reports(one, other, 1e-12)


def test_schedules_within_the_stages_of_an_integrator_are_those_of_the_stages() -> None:
    problem = long_problem("rate", 60, torch.float64)
    problem = replace(problem, hyper=hl.Hyper(tau=0.3, eta=lambda t: 0.5 / (1 + t), beta=0.05, clock="continuous"))
    with pytest.warns(RuntimeWarning, match="falls back to the eager engine: .*RK4"):
        eager, compiled, _, _ = both(problem, 20, order="parallel", integrator=hl.RK4())
    assert_same(eager, compiled, 0.0)


def test_running_statistics_move_as_in_the_eager_engine() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()
    samples = random_samples(50, batch=(4,), dtype=torch.float64, classes=True)
    problem = Problem(
        hl.Network.feedforward(module), nn.functional.cross_entropy, hl.Hyper.from_sgd(0.1, 0.5), samples
    )
    eager, compiled, one, other = both(problem, 16, order="sequential", credit=hl.Cleared())
    assert_same(eager, compiled, 1e-12)
    assert_same_reports(one, other, 1e-12)
    assert int(compiled.network.output[1].num_batches_tracked) == 50


def test_a_change_of_mode_or_shape_in_mid_stream_is_followed() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    sizes = [4] * 10 + [7] * 11 + [2] * 9
    samples = [hl.Sample(torch.randn(n, 3).double(), torch.randn(n, 2).double()) for n in sizes]
    network = hl.Network.feedforward(module)
    learners = [
        hl.Learner(copy.deepcopy(network), nn.functional.mse_loss, hl.Hyper(eta=0.0), "sequential")
        for _ in range(2)
    ]
    for learner, engine in zip(learners, ("eager", "compiled"), strict=True):
        list(learner.run(samples, engine=engine, chunk=8))
        learner.network.eval()
        list(learner.run(samples, engine=engine, chunk=8))
    assert_same(*learners, 1e-12)


def test_unknown_engines_and_chunks_are_named() -> None:
    learner = random_problem("output", 1, 1).learner()
    with pytest.raises(hl.errors.ConfigError, match="engine='jit' must be"):
        learner.run([], engine="jit")  # type: ignore[arg-type]
    with pytest.raises(hl.errors.ConfigError, match="chunk=0"):
        learner.run([], engine="compiled", chunk=0)
