"""Feeds that differ in everything, and members that are compared with learners that run alone on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import hamlearn as hl
from hamlearn.cells import ColumnarGRU

Make = Callable[[hl.Hyper], hl.Learner]
NAN = float("nan")


def maker(kind: str = "rnn", dtype: torch.dtype = torch.float64, **setting: Any) -> Make:
    """Makes small learners of 3 inputs and 2 outputs."""

    def make(hyper: hl.Hyper) -> hl.Learner:
        if kind == "mlp":
            network = hl.Network.feedforward(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
            return hl.Learner(network.to(dtype), nn.functional.cross_entropy, hyper, **setting)
        cell = ColumnarGRU(3, 4) if kind == "columnar" else nn.RNNCell(3, 4)
        network = hl.Network.recurrent(cell, nn.Linear(4, 2)).to(dtype)
        return hl.Learner(network, nn.functional.mse_loss, hyper, **setting)

    return make


def feed(number: int, steps: int, classes: bool = False, dtype: torch.dtype = torch.float64) -> list[hl.Sample]:
    """Samples with boundaries, gaps and missing targets where no other feed has them."""
    generator, samples = torch.Generator().manual_seed(number), []
    for k in range(steps):
        u = torch.randn(2, 3, generator=generator, dtype=dtype)
        target = torch.randint(2, (2,), generator=generator) if classes else torch.sin(u[:, :2])
        tau = 0.2 + 0.1 * number if (k * (number + 1)) % 7 == 3 else None
        ends = (k + number) % (5 + number) == 0 or k == steps - 1
        samples.append(hl.Sample(u, None if (k + number) % 4 == 0 else target, tau, boundary=ends))
    return samples


def alone(make: Make, hyper: Sequence[hl.Hyper], seeds: Sequence[int], feeds: Sequence[Any]) -> list[Any]:
    """Each member by itself: the learner, its reports, and the error that ended its run."""
    found, rest = [], iter(feeds)
    for setting in hyper:
        for seed in seeds:
            torch.manual_seed(seed)
            learner, reports, error = make(setting), [], None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    for report in learner.run(next(rest)):
                        reports.append(report)
                except Exception as raised:
                    error = raised
            found.append((learner, reports, error))
    return found


def assert_member(member: hl.Learner, learner: hl.Learner, close: float = 1e-12) -> None:
    """Weights, costates, state, time and place in the stream are those of a learner that ran alone."""
    same = lambda a, b: torch.testing.assert_close(a, b, rtol=close, atol=close)  # noqa: E731
    for a, b in zip(member.network.parameters(), learner.network.parameters(), strict=True):
        same(a.detach().cpu(), b.detach())
    mine, other = member.state, learner.state
    assert (mine.t, mine.updates) == (other.t, other.updates)
    assert member.position == learner.position
    assert member._eager.state.fresh == learner._eager.state.fresh
    for one, two in ((mine.omega, other.omega), (mine.v, other.v)):
        assert one.keys() == two.keys()
        for name in one:
            same(one[name].cpu(), two[name])
    if member._eager.state.fresh:
        # The next sample begins a sequence, whatever state is shown.
        return
    for one, two in ((mine.h, other.h), (mine.z, other.z)):
        assert (one is None) == (two is None)
        if two is not None:
            same(one.cpu(), two)
    for one, two in zip(member._eager.state.carry.E, learner._eager.state.carry.E, strict=True):
        same(one.cpu(), two)


def assert_reports(reports: Sequence[hl.AgentsReport], number: int, expected: Sequence[Any], close: float) -> None:
    """Each report of a population tells of a member what the member would have told alone."""
    same = lambda a, b: torch.testing.assert_close(a.cpu(), b, rtol=close, atol=close)  # noqa: E731
    for k, report in enumerate(reports):
        if k >= len(expected):
            assert not report.took[number]
            assert report[number] is None
            continue
        one, other = report[number], expected[k]
        assert report.took[number]
        assert report.t[number] == one.t == other.t
        assert torch.equal(report.samples[number].u, other.sample.u)
        assert one.sample.boundary == other.sample.boundary
        assert report.skipped[number] == one.skipped == other.skipped
        if other.skipped:
            continue
        same(report.y[number], other.y)
        assert (one.loss is None) == (other.loss is None)
        if other.loss is None:
            assert report.loss is None or bool(report.loss[number].isnan())
        else:
            same(report.loss[number], other.loss)
            same(one.loss, other.loss)
        H = torch.as_tensor(other.hamiltonian).to(report.hamiltonian.dtype)
        same(report.hamiltonian[number], H)
        same(torch.as_tensor(one.hamiltonian).to(H.dtype), H)


def assert_as_alone(
    population: hl.Population, reports: Sequence[hl.AgentsReport], singles: Sequence[Any], close: float = 1e-12
) -> None:
    """Every member is where it would have ended alone, and has told what it would have told."""
    assert len(reports) == max(len(expected) for _, expected, _ in singles)
    for number, (learner, expected, error) in enumerate(singles):
        assert_member(population.member(number), learner, close)
        assert_reports(reports, number, expected, close)
        aside = population.aside.get(number)
        assert (type(aside), str(aside)) == (type(error), str(error))
