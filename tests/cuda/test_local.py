"""Local learners on a GPU: fused ticks take the eager ones, of the GPU and of the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError
from hamlearn.local import LocalLearner, Residual
from tests.cuda.device import moved, on_gpu

pytestmark = on_gpu
mse = nn.functional.mse_loss
SETTINGS: list[dict[str, Any]] = [{}, {"align": True}, {"hold": 3}, {"align": True, "hold": 2}]
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}


def layer(inputs: int, outputs: int, function: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), function())


def chain(kind: str) -> nn.Sequential:
    if kind == "residual":
        blocks = [Residual(layer(37, 37, nn.GELU)) for _ in range(5)]
        return nn.Sequential(layer(13, 37), *blocks, Residual(nn.Linear(37, 37)), nn.Linear(37, 3, bias=False))
    if kind == "one stack":
        return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(6)))
    if kind == "widths":
        return nn.Sequential(layer(13, 130, nn.ReLU), layer(130, 257), layer(257, 3, nn.Sigmoid))
    return nn.Sequential(layer(13, 48), *(layer(48, 48) for _ in range(6)), nn.Linear(48, 3))


def stream(kind: str, count: int, dtype: torch.dtype, batch: tuple[int, ...] = (1,)) -> list[hl.Sample]:
    inputs, outputs = (64, 64) if kind == "one stack" else (13, 3)
    draw = torch.Generator().manual_seed(count)
    teacher = torch.randn(inputs, outputs, generator=draw, dtype=dtype) / inputs**0.5
    samples = []
    for k in range(count):
        u = torch.randn(*batch, inputs, generator=draw, dtype=dtype)
        target = None if k % 7 == 3 else torch.tanh(u @ teacher)
        ends = k % 101 == 100 or k == count - 1
        samples.append(hl.Sample(u, target, tau=None if k % 4 else 0.6, boundary=ends))
    return samples


def assert_close(one: LocalLearner, other: LocalLearner, close: float) -> None:
    """Relative to the norm of each tensor, as weights whose sums are taken in another order differ."""
    pairs = [
        (a.detach(), b.detach()) for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True)
    ]
    mine, theirs = one.state, other.state
    pairs += [(omega, theirs.omega[name]) for name, omega in mine.omega.items()]
    for place in ("h", "z"):
        a, b = getattr(mine, place), getattr(theirs, place)
        assert (a is None) == (b is None)
        nothing = torch.zeros(())
        # Fused, a sample without a target has costates of 0, and eagerly none.
        pairs += [(a.get(name, nothing), b.get(name, nothing)) for name in {*(a or ()), *(b or ())}]
    for a, b in pairs:
        assert (a.cpu() - b.cpu()).norm() <= close * (1e-3 + a.norm())
    assert (mine.t, mine.updates, one.position) == (theirs.t, theirs.updates, other.position)


def both(
    kind: str, dtype: torch.dtype, setting: dict[str, Any], hyper: hl.Hyper
) -> tuple[LocalLearner, LocalLearner]:
    """The same learner on the CPU and on the GPU."""
    torch.manual_seed(1)
    module = chain(kind).to(dtype)
    return (
        LocalLearner(copy.deepcopy(module), mse, hyper, **setting),
        LocalLearner(copy.deepcopy(module).cuda(), mse, hyper, **setting),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "residual", "one stack", "widths"])
def test_fused_ticks_on_the_gpu_are_the_eager_ones_of_the_cpu_after_1000_ticks(
    kind: str, setting: dict[str, Any], dtype: torch.dtype
) -> None:
    hyper = hl.Hyper(eta=0.3, eta_z=0.05, beta=lambda t: 0.003 / (1 + 0.001 * t), phi_first=0.5)
    eager, fused = both(kind, dtype, setting, hyper)
    count = 1000 // setting.get("hold", 1)
    samples = stream(kind, count, dtype)
    one = list(eager.run(samples))
    other = list(fused.run([moved(sample) for sample in samples], engine="compiled"))
    assert fused._blocks is not None
    assert fused._blocks._ticks is not None
    assert_close(eager, fused, CLOSE[dtype])
    assert len(one) == len(other) == count
    for a, b in zip(one, other, strict=True):
        assert (a.y - b.y.cpu()).norm() <= CLOSE[dtype] * (1 + a.y.norm())
        assert (a.loss is None) == (b.loss is None)
        assert a.t == b.t


@pytest.mark.parametrize("batch", [(), (1, 1)], ids=str)
@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_one_sample_in_any_form_is_taken(setting: dict[str, Any], batch: tuple[int, ...]) -> None:
    eager, fused = both("plain", torch.float64, setting, hl.Hyper.from_sgd(0.01, momentum=0.9))
    samples = stream("plain", 100, torch.float64, batch)
    for a, b in zip(
        eager.run(samples), fused.run([moved(s) for s in samples], engine="compiled", chunk=33), strict=True
    ):
        assert (a.y - b.y.cpu()).abs().max() < 1e-12
        assert abs(float(a.hamiltonian) - float(b.hamiltonian)) < 1e-11
    assert_close(eager, fused, 1e-12)


@pytest.mark.parametrize(
    "function", [nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Identity]
)
def test_every_function_and_its_slope_are_those_of_pytorch(function: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(layer(20, 20, function) for _ in range(3))).double()
    hyper = hl.Hyper.from_sgd(0.01)
    eager = LocalLearner(copy.deepcopy(module), mse, hyper, align=True)
    fused = LocalLearner(module.cuda(), mse, hyper, align=True)
    samples = [hl.Sample(torch.randn(1, 20).double(), torch.randn(1, 20).double()) for _ in range(60)]
    list(eager.run(samples)), list(fused.run([moved(s) for s in samples], engine="compiled"))
    assert_close(eager, fused, 1e-12)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_classes_are_learned_by_cross_entropy(setting: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = chain("plain").double()
    loss = nn.functional.cross_entropy
    hyper = hl.Hyper.from_sgd(0.01, momentum=0.5)
    eager = LocalLearner(copy.deepcopy(module), loss, hyper, **setting)
    fused = LocalLearner(module.cuda(), loss, hyper, **setting)
    samples = [hl.Sample(torch.randn(1, 13).double(), torch.randint(0, 3, (1,))) for _ in range(70)]
    list(eager.run(samples)), list(fused.run([moved(s) for s in samples], engine="compiled"))
    assert_close(eager, fused, 1e-12)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_two_fused_runs_end_with_the_same_bits(setting: dict[str, Any]) -> None:
    ended = []
    for _ in range(2):
        _, fused = both("residual", torch.float32, setting, hl.Hyper.from_sgd(0.003, momentum=0.9))
        list(fused.run([moved(s) for s in stream("residual", 300, torch.float32)], engine="compiled"))
        ended.append([weight.clone() for weight in fused.module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_the_learner_is_where_its_last_report_says(setting: dict[str, Any]) -> None:
    eager, fused = both("plain", torch.float64, setting, hl.Hyper.from_sgd(0.01, momentum=0.5))
    samples = stream("plain", 150, torch.float64)
    there = [moved(sample) for sample in samples]
    runs = zip(eager.run(samples, max_steps=120), fused.run(there, max_steps=120, engine="compiled"), strict=True)
    for number, _ in enumerate(runs):
        if number % 29 == 17:
            assert_close(eager, fused, 1e-12)
    for one, other in zip(samples[120:], there[120:], strict=True):
        eager.step(one), fused.step(other)
    assert_close(eager, fused, 1e-12)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_what_is_not_finite_is_met_as_by_the_eager_engine(setting: dict[str, Any], policy: str) -> None:
    eager, fused = both("plain", torch.float64, setting | {"on_nonfinite": policy}, hl.Hyper.from_sgd(0.01))
    samples = stream("plain", 90, torch.float64)
    samples[50].u[0, 3] = torch.nan
    found = []
    for learner, engine in ((eager, "eager"), (fused, "compiled")):
        seen: list[Any] = []
        try:
            given = samples if engine == "eager" else [moved(s) for s in samples]
            seen += [report.skipped for report in learner.run(given, engine=engine)]  # type: ignore[arg-type]
        except NonFiniteError as error:
            seen.append(str(error))
        found.append(seen)
    assert found[0] == found[1]
    assert_close(eager, fused, 1e-12)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_a_checkpoint_of_a_fused_run_goes_on_in_either_engine(setting: dict[str, Any], tmp_path: Path) -> None:
    hyper = hl.Hyper.from_sgd(0.01, momentum=0.5)
    eager, fused = both("plain", torch.float64, setting, hyper)
    samples = stream("plain", 130, torch.float64)
    there = [moved(sample) for sample in samples]
    list(eager.run(samples))
    for number, _ in enumerate(fused.run(there, engine="compiled", chunk=32)):
        if number == 61:
            fused.save(tmp_path / "a.hl")
            break
    for engine in ("eager", "compiled"):
        other = LocalLearner(chain("plain").double().cuda(), mse, hyper, **setting)
        other.load(tmp_path / "a.hl")
        list(other.run(there, engine=engine, resume=True))  # type: ignore[arg-type]
        assert_close(eager, other, 1e-12)


def test_the_eager_engine_on_the_gpu_takes_the_ticks_of_the_cpu() -> None:
    for setting in (
        *SETTINGS,
        {"order": "sequential"},
        {"align": True, "order": "sequential"},
        {"delay_free": True},
    ):
        one, other = both("plain", torch.float64, setting, hl.Hyper.from_sgd(0.01, momentum=0.5))
        samples = stream("plain", 60, torch.float64)
        list(one.run(samples)), list(other.run([moved(s) for s in samples]))
        assert_close(one, other, 1e-12)
