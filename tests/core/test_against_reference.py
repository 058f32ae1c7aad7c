"""The fast orders against the plain equations, step by step."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves

import hamlearn as hl
from hamlearn import reference
from tests.problems import NETWORKS, random_problem


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / (1 + b.abs().max())).item()


def compare(problem, tolerance, still=False, **kwargs):
    learner = problem.learner(**kwargs)
    judge = reference.run(copy.deepcopy(problem.network), problem.loss, problem.hyper, problem.samples, **kwargs)
    moved = False
    for sample, (expected, seen) in zip(problem.samples, judge, strict=True):
        report = learner.step(sample)
        state = learner.state
        theta = dict(learner.network.named_parameters())
        pairs = [(report.y, seen.y), (torch.as_tensor(report.hamiltonian), seen.hamiltonian)]
        pairs += [(report.loss, seen.loss)] if seen.loss is not None else []
        pairs += [(theta[n].detach(), w) for n, w in expected.theta.items()]
        pairs += [(state.omega[n], w) for n, w in expected.omega.items()]
        if state.h is not None and expected.h is not None:
            pairs += list(zip(tree_leaves(state.h), tree_leaves(expected.h), strict=True))
            pairs += list(zip(tree_leaves(state.z), tree_leaves(expected.z), strict=True))
        assert (report.loss is None) == (seen.loss is None)
        assert state.t == pytest.approx(expected.t, abs=1e-12)
        for got, want in pairs:
            assert relative(got, want) < tolerance
        moved = moved or any(bool((o != 0).any()) for o in expected.omega.values())
    start = dict(problem.network.named_parameters())
    assert moved != still
    assert any(bool((start[n] != w).any()) for n, w in expected.theta.items()) != still


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Cleared()], ids=repr)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_parallel_order_agrees_with_the_equations_over_60_steps(kind, seed, credit):
    # In parallel order a cleared costate never reaches a pure state net's weights: they must stay put.
    still = kind == "state" and not credit.carries
    compare(random_problem(kind, seed, 60), 1e-12, still, order="parallel", credit=credit)


@pytest.mark.parametrize("reset_h", ["boundary", "sample"])
@pytest.mark.parametrize("credit", [hl.Forward(), hl.Cleared()], ids=repr)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_sequential_order_agrees_with_the_equations_over_60_steps(kind, seed, credit, reset_h):
    compare(random_problem(kind, seed, 60), 1e-12, order="sequential", credit=credit, reset_h=reset_h)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_float32_stays_close_to_the_equations(kind, order):
    # (ĥ − h)/τ magnifies rounding by 1/τ, up to 50 here, hence more than float32's 1e-7.
    compare(random_problem(kind, 4, 50, torch.float32), 1e-4, order=order, credit=hl.Forward())
