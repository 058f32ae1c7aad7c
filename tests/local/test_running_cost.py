"""A running cost R(u, h, dh, y, θ, t) over nodes, and the literal delay-free rule: against the plain equations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference
from hamlearn.errors import ConfigError
from hamlearn.local import LocalLearner
from tests.local.cases import assert_alike, assert_reports, chain, hyper, make, mse, samples, skips, whole_network
from tests.local.test_against_reference import assert_same, close


def cost(u: Any, h: Any, dh: Any, y: Any, theta: Any, t: Any) -> torch.Tensor:
    """Terms of every argument, with products of some."""
    R = 0.05 * torch.stack([w.square().sum() for w in theta.values()]).sum() * (1 + torch.cos(t))
    for place, name in enumerate(h):
        R = R + 0.1 * (1 + place) * h[name].square().sum() + 0.2 * (h[name] * dh[name]).sum()
        R = R + 0.03 * dh[name].square().sum()
    shown = list(y.values()) if isinstance(y, dict) else [y]
    driven = list(u.values()) if isinstance(u, dict) else [u]
    return R + 0.1 * sum(x.sin().sum() for x in shown) * sum(x.mean() for x in driven)


def judged(given: hl.Hyper, names: list[str]) -> hl.Hyper:
    beta = {f"state.module.{names[0]}": 0.02, "*": given.beta["*"]}
    return hl.Hyper(**{**vars(given), "beta": beta})


@pytest.mark.parametrize("s", [-1, 1])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("kind", ["chain", "long chain", "skips", "cyclic", "outputs", "neurons"])
def test_a_running_cost_follows_the_equations_of_the_whole_graph(kind: str, order: Any, s: int) -> None:
    module = make(kind)
    judge_module = copy.deepcopy(module)
    names = [name for name, _ in module.named_parameters()]
    given = hyper(names)
    if s == 1:
        # Forward in time, costates of this sign grow.
        given = hl.Hyper(tau=0.1, eta=0.3, beta={names[0]: 0.02, "*": 0.01}, s=1)
    learner = LocalLearner(module, nn.functional.mse_loss, given, order=order, running_cost=cost)
    stream = samples(kind, 20 if s == -1 else 8)
    judge = reference.run(
        whole_network(judge_module), mse, judged(given, names), stream, order, hl.Forward(), running_cost=cost
    )
    for sample, (state, seen) in zip(stream, judge, strict=True):
        report = learner.step(sample)
        assert_same(learner, state, ended=sample.boundary)
        assert close(torch.as_tensor(report.hamiltonian), seen.hamiltonian)


@pytest.mark.parametrize("running", [None, cost])
@pytest.mark.parametrize("kind", ["chain", "skips"])
@pytest.mark.parametrize("literal", [False, True])
def test_delay_free_steps_follow_the_time_variant_equations(kind: str, running: Any, literal: bool) -> None:
    module = chain(3, 4, 4, 2) if kind == "chain" else skips()
    judge_module = copy.deepcopy(module)
    names = [n for n, _ in module.named_children()] if kind == "chain" else ["a", "b", "c", "add", "out"]
    given = hl.Hyper(tau=0.7, eta=0.1, eta_z=0.2, beta=0.03, phi=0.8, phi_first=1.3)
    learner = LocalLearner(
        module, nn.functional.mse_loss, given, delay_free="literal" if literal else True, running_cost=running
    )
    stream = [hl.Sample(s.u, s.target, s.tau) for s in samples(kind, 30)]
    before = [None, *(s.target for s in stream)]
    shown = [
        hl.Sample(s.u, s.target if literal else before[i] if step == 0 else None, s.tau)
        for i, s in enumerate(stream)
        for step in range(len(names))
    ]
    judge = reference.run(
        whole_network(judge_module, active=names),
        mse,
        given,
        shown,
        "parallel",
        hl.Forward(),
        running_cost=running,
    )
    for sample in stream:
        report = learner.step(sample)
        for _ in names:
            state, _ = next(judge)
        assert_same(learner, state, ended=False)
        # What is reported is the pass as it ends, whenever its loss enters.
        assert report.loss is None or close(report.loss, nn.functional.mse_loss(report.y, sample.target))


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("kind", ["long chain", "cyclic"])
def test_a_running_cost_is_compiled_as_it_is_eagerly(kind: str, order: Any) -> None:
    module, given = make(kind), hl.Hyper(tau=0.8, eta=0.4, eta_z=0.2, beta=0.002, phi=0.7)
    eager, compiled = (
        LocalLearner(copy.deepcopy(module), nn.functional.mse_loss, given, order=order, running_cost=cost)
        for _ in range(2)
    )
    stream = samples(kind, 30)
    assert_reports(eager.run(stream, 30), compiled.run(stream, 30, engine="compiled", chunk=8))
    assert compiled._blocks is not None
    assert_alike(eager, compiled)


def test_what_a_running_cost_cannot_be_is_refused() -> None:
    module = chain(3, 4, 2)
    with pytest.raises(ConfigError, match="align=False"):
        LocalLearner(module, mse, hl.Hyper(), align=True, running_cost=cost)
    with pytest.raises(ConfigError, match="running_cost=1 must be a function"):
        LocalLearner(module, mse, hl.Hyper(), running_cost=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delay_free='both' must be"):
        LocalLearner(module, mse, hl.Hyper(), delay_free="both")  # type: ignore[arg-type]
    learner = LocalLearner(module, mse, hl.Hyper(), running_cost=lambda u, h, dh, y, theta, t: y)
    with pytest.raises(ConfigError, match="running_cost returned float64"):
        learner.step(hl.Sample(torch.ones(1, 3)))
