"""What users do with losses, modules, autocast and processes, compared with plain autograd."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import hamlearn as hl
from tests.comparing import same

mse = nn.functional.mse_loss


def samples(count: int = 8, size: int = 3, dtype: torch.dtype = torch.float64) -> list[hl.Sample]:
    draw = torch.Generator().manual_seed(0)
    return [
        hl.Sample(
            torch.randn(2, size, generator=draw, dtype=dtype), torch.randn(2, 1, generator=draw, dtype=dtype)
        )
        for _ in range(count)
    ]


def recurrent(cell: nn.Module | None = None) -> hl.Network:
    torch.manual_seed(0)
    cell = cell or nn.GRUCell(3, 4)
    return hl.Network.recurrent(cell, nn.Linear(4, 1)).double()


def penalised(network: hl.Network, holds: bool):
    """A loss that reads all weights, those of the state net too: it holds them, or asks the network for them."""
    held = list(network.parameters())
    weights = (lambda: held) if holds else network.parameters
    return lambda y, target: mse(y, target) + 0.1 * sum(w.square().sum() for w in weights())


SETTINGS = {
    "cleared": {},
    "cleared, s = +1": {"hyper": hl.Hyper(eta=0.1, beta=0.01, s=1)},
    "forward": {"credit": hl.Forward(), "hyper": hl.Hyper(eta=0.1, beta=0.01)},
    "parallel": {"credit": hl.Forward(), "order": "parallel", "hyper": hl.Hyper(eta=0.1, beta=0.01)},
    "stages": {
        "credit": hl.Forward(),
        "order": "parallel",
        "integrator": hl.RK4(),
        "hyper": hl.Hyper(eta=0.0, beta=0.0, clock="continuous"),
    },
    "echo": {"credit": hl.Echo(every=1)},
    "truncated echo": {"credit": hl.Echo(every=1, truncate=2)},
    "sensitivity": {"credit": hl.Sensitivity()},
    "parallel sensitivity": {"credit": hl.Sensitivity(), "order": "parallel"},
}


@pytest.mark.parametrize(("engine", "holds"), [("eager", True), ("eager", False), ("compiled", True)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_penalty_in_the_loss_reaches_the_weights_of_the_state_net(setting, engine, holds):
    given = {"hyper": hl.Hyper.from_sgd(lr=0.05), **SETTINGS[setting]}
    cell = hl.cells.ColumnarGRU(3, 4) if "sensitivity" in setting else None
    plain, with_penalty = recurrent(copy.deepcopy(cell)), recurrent(copy.deepcopy(cell))
    with_penalty.load_state_dict(plain.state_dict())
    one = hl.Learner(plain, mse, **given)
    other = hl.Learner(with_penalty, penalised(with_penalty, holds), **given)
    (sample,) = samples(1)
    before = {name: weight.detach().clone() for name, weight in plain.named_parameters()}
    for learner in (one, other):
        list(learner.run([sample], engine=engine))
    hyper = given["hyper"]
    gain = -hyper.s * hyper.tau * hyper.at(0.0, first=True).phi
    for name, omega in other.state.omega.items():
        expected = one.state.omega[name] + gain * 0.2 * before[name]
        torch.testing.assert_close(omega, expected, rtol=0, atol=1e-12)


def test_a_plain_function_may_read_weights_of_the_state_net_as_output_net():
    network = recurrent()
    cell = network.state
    tied = hl.Network(state=cell, output=lambda u, h: h @ cell.weight_hh[:1].T, h0=torch.zeros(2, 4).double())
    tied.transition = "next"
    learner = hl.Learner(tied, mse, hl.Hyper(eta=0.1, beta=0.0), credit=hl.Forward())
    (sample,) = samples(1)
    learner.step(sample)
    h = cell(sample.u, torch.zeros(2, 4).double())
    L = mse(h @ cell.weight_hh[:1].T, sample.target)
    for (name, omega), grad in zip(
        learner.state.omega.items(), torch.autograd.grad(L, list(cell.parameters())), strict=True
    ):
        torch.testing.assert_close(omega, grad, rtol=0, atol=1e-12, msg=name)


@pytest.mark.filterwarnings("ignore:engine='compiled' falls back")
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_within_autocast_every_step_uses_the_weights_of_now(engine):
    def learned(outer: bool) -> Tensor:
        torch.manual_seed(0)
        network = hl.Network.feedforward(nn.Linear(3, 1))
        learner = hl.Learner(network, lambda y, t: mse(y.float(), t), hl.Hyper.from_sgd(lr=0.1))
        stream = samples(6, dtype=torch.float32)
        if outer:
            with torch.autocast("cpu", torch.bfloat16):
                for _ in learner.run(stream, engine=engine):
                    pass
        else:
            for sample in stream:
                with torch.autocast("cpu", torch.bfloat16):
                    learner.step(sample)
        return network.output.weight.detach()

    torch.testing.assert_close(learned(outer=True), learned(outer=False))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_mask_of_minus_infinity_in_a_buffer_is_no_reason_to_stop(engine):
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1).double()
            self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1).double())

        def forward(self, u: Tensor) -> Tensor:
            return self.linear(u @ self.mask.exp())

    learner = hl.Learner(hl.Network.feedforward(Masked()), mse, hl.Hyper.from_sgd(lr=0.05))
    assert all(not report.skipped for report in learner.run(samples(), engine=engine))


@pytest.mark.parametrize(
    "cut", [lambda y, t: (y.argmax(-1) == 0).double().mean(), lambda y, t: torch.tensor(mse(y, t).item())]
)
def test_a_loss_without_a_graph_raises(cut):
    learner = hl.Learner(recurrent(), cut)
    with pytest.raises(hl.errors.ConfigError, match=r"the loss has no graph .* detach\(\), .item\(\)"):
        learner.step(samples(1)[0])


def test_wrapped_and_scripted_modules_raise_with_the_remedy(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        with pytest.raises(hl.errors.ConfigError, match=r"give its .module"):
            hl.Learner(hl.Network.feedforward(wrapped), mse)
    finally:
        torch.distributed.destroy_process_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 1))
    with pytest.raises(hl.errors.ConfigError, match=r"is a scripted module.* give the module it was made of"):
        hl.Learner(hl.Network.feedforward(scripted), mse)


def _position(learner: hl.Learner, queue) -> None:
    queue.put(learner.state.t)


def test_a_learner_can_be_handed_to_a_process_that_is_spawned():
    learner = hl.Learner(recurrent(), mse)
    learner.step(samples(1)[0])
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_position, args=(learner, queue))
    process.start()
    assert queue.get(timeout=60) == 1.0
    process.join()


@dataclass(frozen=True)
class Halved(hl.credit.Credit):
    """z enters a step at half of what the step before left."""

    carries = False

    def enter(self, z: Tensor) -> Tensor:
        return z / 2


@dataclass(frozen=True)
class Kept(hl.credit.Credit):
    """Says nothing of what it carries."""


def test_a_credit_with_an_enter_of_its_own_is_heard_whatever_it_says_it_carries():
    def costates(credit: hl.credit.Credit, order: str) -> list[Tensor]:
        learner = hl.Learner(recurrent(), mse, hl.Hyper(eta=0.5, beta=0.01), order=order, credit=credit)
        return [learner.step(sample) and learner.state.z for sample in samples(3)]

    for order in ("sequential", "parallel"):
        halved, cleared = costates(Halved(), order), costates(hl.Cleared(), order)
        assert not torch.equal(halved[-1], cleared[-1])
        assert same(costates(Kept(), order), costates(hl.Forward(), order))


class Branching(nn.Linear):
    """Looks at a number to decide what to do, which no loop can."""

    def forward(self, u):
        y = super().forward(u)
        return y if float(u.sum().detach()) > 0 else -y


def test_auto_compiles_what_is_at_hand_and_long_and_steps_eagerly_else(caplog):
    def eager_of(stream, make=lambda: nn.Linear(3, 1).double()) -> str:
        learner = hl.Learner(hl.Network.feedforward(make()), mse)
        reports = list(learner.run(stream, engine="auto"))
        return "compiled" if type(reports[0]) is not hl.StepReport else "eager"

    many = samples(8) * 80
    assert eager_of(many) == "compiled"
    assert eager_of(hl.streams.from_any(many)) == "compiled"
    assert eager_of(many[:20]) == "eager"
    assert eager_of(iter(many)) == "eager"
    with caplog.at_level(logging.INFO, logger="hamlearn"):
        assert eager_of(many, lambda: Branching(3, 1).double()) == "eager"
    assert sum("engine='auto' uses the eager engine" in message for message in caplog.messages) == 1
