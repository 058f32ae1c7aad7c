"""Learners on a GPU take the steps of eager learners on the CPU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops import backends
from tests.compiled.test_engine import SETTINGS, long_problem, name_of
from tests.compiled.test_population import HYPERS, alone, maker, stream
from tests.cuda.device import assert_alike, both, moved, on_gpu
from tests.problems import NETWORKS, Problem, random_problem

pytestmark = on_gpu


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to `torch.compile`."""
    monkeypatch.setattr(backends, "OnCuda", None)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", NETWORKS)
def test_compiled_steps_are_the_eager_ones_on_random_problems(kind: str, setting: dict[str, Any]) -> None:
    assert_alike(*both(random_problem(kind, 5, 40), 7, **setting), close=1e-11)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", ["rate", "lstm", "output"])
def test_engines_agree_after_1000_steps(
    kind: str, setting: dict[str, Any], dtype: torch.dtype, close: float
) -> None:
    assert_alike(*both(long_problem(kind, 1000, dtype), 97, **setting), close=close)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("every", [None, 7])
def test_an_echo_goes_back_through_kernels(every: int | None) -> None:
    problem = random_problem("gru", 4, 40, clock="events")
    problem.hyper = hl.Hyper(tau=0.5, eta=0.3, beta=0.05)
    setting = {"order": "sequential", "credit": hl.Echo(every=every)}
    assert_alike(*both(problem, 9, **setting), close=1e-11)


def wide_problem(cell: type[nn.Module], size: int, dtype: torch.dtype) -> Problem:
    torch.manual_seed(size)
    network = hl.Network.recurrent(cell(5, size), nn.Linear(size, 3)).to(dtype)
    samples = [hl.Sample(torch.randn(1, 5, dtype=dtype), torch.randn(1, 3, dtype=dtype)) for _ in range(200)]
    return Problem(network, nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.003, momentum=0.9), samples)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-11), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Forward()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(("cell", "size"), [(nn.RNNCell, 203), (nn.LSTMCell, 131)])
def test_networks_of_several_blocks_take_the_eager_steps(
    cell: type[nn.Module], size: int, credit: Any, dtype: torch.dtype, close: float
) -> None:
    problem = wide_problem(cell, size, dtype)
    eager, compiled, one, other = both(problem, 64, order="sequential", credit=credit)
    (made,) = compiled._blocks.engine.steps._made.values()
    assert all(loop.kernel.blocks > 1 for step in made for loop in step.loop.loops.values())
    assert_alike(eager, compiled, one, other, close=close)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", ["gru", "lstm", "frozen"])
def test_members_of_a_population_are_their_single_runs_in_float64(kind: str, order: str) -> None:
    make, seeds, samples = maker(kind, order=order), [0, 1, 2], stream(classes=False)

    def there(hyper: hl.Hyper) -> hl.Learner:
        learner = make(hyper)
        learner.network.cuda()
        setting = {"order": order, "credit": hl.Forward()}
        return hl.Learner(learner.network, nn.functional.mse_loss, hyper, **setting)

    population = hl.Population(there, hyper=HYPERS, seeds=seeds)
    reports = list(population.run([moved(sample) for sample in samples], chunk=17))
    for number, (learner, expected) in enumerate(alone(make, HYPERS, seeds, samples)):
        member = population.members[number]
        for a, b in zip(learner.network.parameters(), member.network.parameters(), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-12, atol=1e-12)
        for a, b in zip(expected, reports, strict=True):
            torch.testing.assert_close(b.y[number].cpu(), a.y, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("one_kernel")
def test_what_is_not_finite_stops_at_the_step_of_the_eager_engine() -> None:
    samples = [hl.Sample(torch.ones(1, 3), torch.ones(1, 2)) for _ in range(12)]
    samples[7] = hl.Sample(torch.full((1, 3), float("inf")), torch.ones(1, 2))
    found = []
    for engine, device in (("eager", "cpu"), ("compiled", "cuda")):
        torch.manual_seed(0)
        network = hl.Network.recurrent(nn.RNNCell(3, 4), nn.Linear(4, 2)).to(device)
        learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(), on_nonfinite="raise")
        with pytest.raises(hl.errors.HamlearnError) as caught:
            list(learner.run(samples if device == "cpu" else [moved(s) for s in samples], engine=engine))
        found.append((type(caught.value), learner.position, learner.state.t))
        assert all(torch.isfinite(weight).all() for weight in learner.network.parameters())
    assert found[0] == found[1]


@pytest.mark.usefixtures("one_kernel")
def test_a_learner_saved_on_the_gpu_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    problem = long_problem("lstm", 192, torch.float64)
    samples = [moved(sample) for sample in problem.samples]

    def make() -> hl.Learner:
        learner = problem.learner()
        return hl.Learner(
            learner.network.cuda(), problem.loss, problem.hyper, order="parallel", credit=hl.Forward()
        )

    whole, first, second = make(), make(), make()
    list(whole.run(samples, engine="compiled", chunk=64))
    for number, _ in enumerate(first.run(samples, engine="compiled", chunk=64), start=1):
        if number == 100:
            first.save(tmp_path / "learner")
            break
    second.load(tmp_path / "learner")
    list(second.run(samples[100:], engine="compiled", chunk=64))
    for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_a_beta_that_lies_on_the_cpu_moves_weights_on_the_gpu(order: Any, engine: Any) -> None:
    samples = [hl.Sample(torch.randn(1, 3).double(), torch.randn(1, 2).double()) for _ in range(20)]
    beta = {"*weight*": torch.rand(2, 3).double(), "*": torch.tensor(0.1).double()}
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        network = hl.Network.feedforward(nn.Linear(3, 2).double()).to(device)
        hyper = hl.Hyper(eta=0.5, beta=beta)
        learner = hl.Learner(network, nn.functional.mse_loss, hyper, order=order, credit=hl.Forward())
        list(learner.run([moved(s) for s in samples] if device == "cuda" else samples, engine=engine))
        found.append([weight.detach().cpu() for weight in learner.network.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning")
def test_what_has_no_loops_goes_to_torch_compile_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)))

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (y.sort(-1).values - target).square().mean()

    problem = Problem(
        network, loss, hl.Hyper(), [hl.Sample(torch.randn(1, 4), torch.randn(1, 5)) for _ in range(40)]
    )
    with caplog.at_level(logging.WARNING, "hamlearn"):
        found = both(problem, 16, order="sequential", credit=hl.Cleared())
    assert any("sort" in record.message and "torch.compile" in record.message for record in caplog.records)
    assert_alike(*found, close=1e-5)
