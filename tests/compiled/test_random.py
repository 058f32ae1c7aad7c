"""Steps that draw random numbers, compiled: judged by the eager step with the same numbers, repeated, resumed."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError
from hamlearn.loops.draws import Draws, GivenDraws
from tests.comparing import same

mse = nn.functional.mse_loss
pytestmark = pytest.mark.filterwarnings("error")


class Noisy(nn.Module):
    """A cell with dropout of its input and noise in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 5)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return self.cell(nn.functional.dropout(u, 0.3, self.training), h) + 0.05 * torch.randn_like(h)


def make(credit: hl.Credit, hyper: Any = None, seed: int = 0) -> hl.Learner:
    torch.manual_seed(seed)
    readout = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2))
    network = hl.Network.recurrent(Noisy(), readout, h0=torch.zeros(2, 5)).double()
    return hl.Learner(network, mse, hyper or hl.Hyper.from_sgd(lr=0.05, momentum=0.5), credit=credit)


def samples(count: int = 60) -> list[hl.Sample]:
    random = torch.Generator().manual_seed(5)
    draw = lambda n: torch.randn(2, n, generator=random).double()  # noqa: E731
    return [hl.Sample(draw(3), draw(2), boundary=k % 20 == 19) for k in range(count)]


def results(learner: hl.Learner) -> Any:
    return [weight.detach().clone() for weight in learner.network.parameters()], learner.state.omega


CREDITS = [
    hl.Forward(),
    hl.credit.UORO(),
    hl.Echo(),
    hl.Echo(truncate=9, every=4),
    hl.Echo(truncate=7),
    hl.Echo(dissipate="token"),
]


@pytest.mark.parametrize("credit", CREDITS, ids=repr)
def test_numbers_do_not_depend_on_blocks_looks_copies_or_checkpoints(credit: hl.Credit, tmp_path: Path) -> None:
    stream, whole = samples(), make(credit)
    losses = [float(report.loss) for report in whole.run(stream, engine="compiled", chunk=64)]
    looked, found = make(credit), []
    for index, report in enumerate(looked.run(stream, engine="compiled", chunk=13)):
        found.append(float(report.loss))
        if index in (3, 4, 40):
            assert looked.state.t == index + 1
    assert found == losses
    assert same(results(looked), results(whole))
    stopped, loaded = make(credit), make(credit)
    for _ in islice(stopped.run(stream, engine="compiled", chunk=32), 47):
        pass
    stopped.save(tmp_path / "learner.pt")
    torch.manual_seed(9)
    loaded.load(tmp_path / "learner.pt")
    for learner in (copy.deepcopy(stopped), stopped, loaded):
        rest = [float(report.loss) for report in learner.run(stream[47:], engine="compiled", chunk=8)]
        assert rest == losses[47:]
        assert same(results(learner), results(whole))


@pytest.mark.parametrize("credit", CREDITS[:2], ids=repr)
def test_a_compiled_step_is_the_eager_step_with_its_numbers(credit: hl.Credit) -> None:
    stream, eager, compiled = samples(20), make(credit), make(credit)
    reports = list(compiled.run(stream, engine="compiled"))
    draws = Draws()
    batch = torch.zeros(2, 5).double()
    # Dropout of the input, two numbers for each normal one, signs of UORO, dropout of the state.
    signs = [torch.zeros(10)] if isinstance(credit, hl.credit.UORO) else []
    draws.like += [torch.zeros(2, 3).double(), batch, batch, *signs, batch]
    rows = draws.rows(eager._eager.seed, 0, len(stream))
    for index, sample in enumerate(stream):
        with GivenDraws([row[index] for row in rows]):
            report = eager.step(sample)
        torch.testing.assert_close(reports[index].loss, report.loss, rtol=1e-12, atol=1e-12)
    for name, costate in eager.state.omega.items():
        torch.testing.assert_close(compiled.state.omega[name], costate, rtol=1e-12, atol=1e-12)


def test_a_bad_sample_takes_no_numbers_and_audits_use_those_of_the_block() -> None:
    stream, whole, stopped = samples(200), make(hl.Cleared()), make(hl.Cleared())
    # More than 64 blocks, one of which is audited.
    losses = [float(report.loss) for report in whole.run(stream, engine="compiled", chunk=2)]
    bad = [*stream[:50], hl.Sample(torch.full((2, 3), torch.nan).double(), stream[50].target)]
    before = torch.get_rng_state()
    with pytest.raises(NonFiniteError, match="the input u is not finite"):
        list(stopped.run(bad, engine="compiled"))
    assert torch.equal(before, torch.get_rng_state())
    assert [float(report.loss) for report in stopped.run(stream[50:], engine="compiled")] == losses[50:]


def test_a_scan_draws_as_a_run_does() -> None:
    stream, run, scanned = samples(), make(hl.Cleared()), make(hl.Cleared())
    losses = torch.stack([report.loss for report in run.run(stream, engine="compiled")])
    u, target = (torch.stack([getattr(sample, name) for sample in stream]) for name in ("u", "target"))
    trace = scanned.scan(u, target, boundary=torch.tensor([sample.boundary for sample in stream]))
    assert torch.equal(trace.loss, losses)


def test_members_draw_what_they_would_draw_alone() -> None:
    stream, hyper = samples(), hl.Hyper.from_sgd(lr=0.05)
    population = hl.Population(lambda hyper: make_member(hyper), hyper, seeds=[3, 4, 4])
    found = torch.stack([report.loss for report in population.run(stream, chunk=17)])
    for number, seed in enumerate([3, 4, 4]):
        torch.manual_seed(seed)
        alone = make_member(hyper)
        losses = torch.stack([report.loss for report in alone.run(stream, engine="compiled")])
        torch.testing.assert_close(found[:, number], losses, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found[:, 0], found[:, 1])


def make_member(hyper: hl.Hyper) -> hl.Learner:
    network = hl.Network.recurrent(Noisy(), nn.Linear(5, 2), h0=torch.zeros(2, 5)).double()
    return hl.Learner(network, mse, hyper)


def test_a_step_of_several_stages_draws_eagerly() -> None:
    network = hl.Network(nn.Sequential(nn.Linear(8, 5), nn.Dropout(0.5)), h0=torch.zeros(2, 5))
    network.state.forward = lambda u, h: nn.Sequential.forward(network.state, torch.cat([u, h], -1))
    learner = hl.Learner(
        network.double(), mse, hl.Hyper(clock="continuous"), "parallel", hl.Forward(), integrator=hl.Heun()
    )
    stream = [hl.Sample(sample.u, torch.zeros(2, 5).double()) for sample in samples(4)]
    with pytest.warns(RuntimeWarning, match="evaluates its network several times"):
        list(learner.run(stream, engine="compiled"))
