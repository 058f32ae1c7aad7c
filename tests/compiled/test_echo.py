"""The compiled echo is the eager one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.compiled.test_engine import assert_same, assert_same_reports, both
from tests.problems import Problem, random_problem, random_samples

ECHOES = [
    hl.Echo(),
    hl.Echo(dissipate="token"),
    hl.Echo(truncate=3),
    hl.Echo(every=4),
    hl.Echo(truncate=5, every=2),
    hl.Echo(truncate=1),
    hl.Echo(truncate=2, every=6, dissipate="token"),
]

KINDS = ["rate", "next", "lstm", "tree", "frozen"]


def echo_problem(kind: str, seed: int, steps: int = 90) -> Problem:
    problem = random_problem(kind, seed, steps)
    return replace(problem, hyper=replace(problem.hyper, s=-1))


@pytest.mark.parametrize("credit", ECHOES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_echoes_are_the_eager_ones_on_random_problems(kind: str, credit: hl.Echo) -> None:
    # Without a batch and in short chunks, or with one and in long chunks, by turns.
    seed, chunk = ((6, 7), (7, 64))[(ECHOES.index(credit) + KINDS.index(kind)) % 2]
    eager, compiled, one, other = both(echo_problem(kind, seed), chunk, order="sequential", credit=credit)
    assert_same(eager, compiled, 1e-12)
    assert_same_reports(one, other, 1e-12)


@pytest.mark.parametrize("credit", ECHOES[:5], ids=str)
def test_a_first_state_is_learned_by_compiled_echoes(credit: hl.Echo) -> None:
    torch.manual_seed(0)
    cell, readout = nn.GRUCell(3, 4).double(), nn.Linear(4, 2).double()
    network = hl.Network.recurrent(cell, readout, h0=nn.Parameter(torch.randn(4, dtype=torch.float64)))
    problem = random_problem("gru", 1, 60)
    samples = [
        replace(s, u=torch.randn(2, 3, dtype=torch.float64), target=torch.randn(2, 2, dtype=torch.float64))
        for s in problem.samples
    ]
    problem = Problem(network, nn.functional.mse_loss, hl.Hyper(tau=0.5, eta=0.2, beta=0.1), samples)
    eager, compiled, one, other = both(problem, 11, order="sequential", credit=credit)
    assert not torch.equal(eager.network.h0_0, network.h0_0)
    assert_same(eager, compiled, 1e-12)
    assert_same_reports(one, other, 1e-12)


def test_tokens_change_hands_between_engines_in_mid_sequence() -> None:
    problem = echo_problem("lstm", 6)
    for credit in ECHOES[:5]:
        setting: dict[str, Any] = {"order": "sequential", "credit": credit}
        eager, mixed = problem.learner(**setting), problem.learner(**setting)
        for sample in problem.samples:
            eager.step(sample)
        stream = iter(problem.samples)
        for engine, steps in (("compiled", 5), ("eager", 3), ("compiled", 20), ("eager", 13), ("compiled", 49)):
            assert len(list(mixed.run(stream, steps, engine=engine, chunk=4))) == steps
            assert mixed.stored_tokens <= len(problem.samples)
        assert_same_state(eager, mixed)


def assert_same_state(eager: hl.Learner, other: hl.Learner) -> None:
    for a, b in zip(eager.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
    for name, omega in eager.state.omega.items():
        torch.testing.assert_close(other.state.omega[name], omega, rtol=1e-12, atol=1e-12)
    assert other.stored_tokens == eager.stored_tokens


def test_weights_that_do_not_lie_in_order_are_learned_all_the_same() -> None:
    torch.manual_seed(0)
    cell = nn.RNNCell(3, 4).double()
    cell.weight_ih = nn.Parameter(torch.randn(3, 4).double().T)
    network = hl.Network.recurrent(cell, nn.Linear(4, 2).double())
    samples = random_samples(30, batch=(1,), dtype=torch.float64)
    for credit in (hl.Echo(every=6), hl.Forward()):
        problem = Problem(network, nn.functional.mse_loss, hl.Hyper(tau=0.5, eta=0.2, beta=0.05), samples)
        eager, compiled, one, other = both(problem, 7, order="sequential", credit=credit)
        assert_same(eager, compiled, 1e-12)
        assert_same_reports(one, other, 1e-12)


def test_tokens_that_changed_buffers_are_not_run_again_by_the_compiled_engine() -> None:
    class Counting(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(h) * (1 + 0.1 * self.calls)

    def make() -> hl.Learner:
        torch.manual_seed(0)
        network = hl.Network.recurrent(torch.nn.RNNCell(2, 3), Counting())
        return hl.Learner(network, torch.nn.functional.mse_loss, credit=hl.Echo(truncate=3, every=3))

    samples = [hl.Sample(torch.full((1, 2), 0.1 * k), torch.ones(1, 1)) for k in range(8)]
    eager, compiled = make(), make()
    expected = [eager.step(sample).y for sample in samples]
    seen = [compiled.step(sample).y for sample in samples[:2]]
    with pytest.warns(RuntimeWarning, match="changed buffers"):
        seen += [report.y for report in compiled.run(samples[2:], engine="compiled")]
    assert all(torch.equal(a, b) for a, b in zip(expected, seen, strict=True))
