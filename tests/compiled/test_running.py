"""What a user sees between two reports of the compiled engine, and what happens where something is wrong."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.compiled.test_engine import SETTINGS, assert_same, name_of
from tests.problems import Problem, random_samples

ALL = [*SETTINGS, {"order": "sequential", "credit": hl.Echo(every=5, truncate=7)}]


def regression(steps: int = 50) -> Problem:
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.GRUCell(3, 4), nn.Linear(4, 2)).double()
    samples = random_samples(steps, batch=(1,), dtype=torch.float64)
    return Problem(network, nn.functional.mse_loss, hl.Hyper(tau=0.5, eta=0.2, beta=0.05), samples)


def collect(reports: Any, into: list[Any]) -> None:
    for report in reports:
        into.append(report)


@pytest.mark.parametrize("setting", ALL, ids=name_of)
def test_between_reports_the_learner_is_where_the_last_one_left_it(setting: dict[str, Any]) -> None:
    problem = regression()
    eager, compiled = problem.learner(**setting), problem.learner(**setting)
    one = eager.run(problem.samples)
    other = compiled.run(problem.samples, engine="compiled", chunk=16)
    u = problem.samples[0].u
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        torch.testing.assert_close(b.y, a.y, rtol=1e-12, atol=1e-12)
        if index in (0, 3, 4, 20, 33, 49):
            assert compiled.state.t == eager.state.t
            assert_same(eager, compiled, 1e-12)
            torch.testing.assert_close(compiled.predict(u), eager.predict(u), rtol=1e-12, atol=1e-12)
            assert compiled.stored_tokens == eager.stored_tokens
        assert compiled.position == eager.position == index + 1


@pytest.mark.parametrize("setting", ALL, ids=name_of)
def test_a_loop_that_is_left_leaves_the_learner_at_its_last_report(setting: dict[str, Any]) -> None:
    problem = regression()
    eager, compiled = problem.learner(**setting), problem.learner(**setting)
    for sample in problem.samples[:21]:
        eager.step(sample)
    for number, _ in enumerate(compiled.run(problem.samples, engine="compiled", chunk=16), start=1):
        if number == 21:
            break
    assert compiled.position == 21
    eager.step(problem.samples[21])
    compiled.step(problem.samples[21])
    torch.testing.assert_close(compiled.state.h, eager.state.h, rtol=1e-12, atol=1e-12)
    for a, b in zip(eager.network.parameters(), compiled.network.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


class Struck:
    """An iterator in which Ctrl-C strikes once, and that gives nothing twice."""

    def __init__(self, samples: list[hl.Sample], at: int) -> None:
        self.left, self.at = list(samples), at

    def __iter__(self) -> Struck:
        return self

    def __next__(self) -> hl.Sample:
        if len(self.left) == self.at:
            self.at = -1
            raise KeyboardInterrupt
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_ctrl_c_while_a_stream_is_read_loses_none_of_what_it_has_given(engine: Any) -> None:
    problem = regression(12)
    learner, stream, reports = problem.learner(), Struck(problem.samples, at=5), []
    with pytest.raises(KeyboardInterrupt):
        collect(learner.run(stream, engine=engine), reports)
    assert len(reports) == 7
    collect(learner.run(stream, engine=engine), reports)
    whole = problem.learner()
    expected = [report.loss for report in whole.run(problem.samples)]
    torch.testing.assert_close([report.loss for report in reports], expected, rtol=1e-12, atol=1e-12)
    assert learner.state.t == whole.state.t


def test_max_steps_reads_no_further() -> None:
    problem = regression()
    learner, stream = problem.learner(), iter(problem.samples)
    assert len(list(learner.run(stream, 10, engine="compiled", chunk=16))) == 10
    assert next(stream) is problem.samples[10]


def shuffled(problem: Problem) -> hl.streams.Stream:
    data = torch.utils.data.TensorDataset(
        torch.cat([s.u for s in problem.samples]), torch.cat([s.target for s in problem.samples])
    )
    return hl.streams.from_dataset(data, shuffle=True, epochs=2)


@pytest.fixture(scope="module", params=ALL, ids=name_of)
def undisturbed(request: pytest.FixtureRequest) -> tuple[dict[str, Any], hl.Learner, list[torch.Tensor]]:
    """A setting, a learner that went through the whole stream, and its losses."""
    problem = regression()
    whole = problem.learner(**request.param)
    losses = [report.loss for report in whole.run(shuffled(problem), engine="compiled", chunk=16)]
    return request.param, whole, losses


@pytest.mark.parametrize("stop", [1, 16, 30])
def test_saved_and_resumed_the_run_ends_bit_for_bit_the_same(
    undisturbed: tuple[dict[str, Any], hl.Learner, list[torch.Tensor]], stop: int, tmp_path: Path
) -> None:
    setting, whole, expected = undisturbed
    problem = regression()
    first = problem.learner(**setting)
    for number, _ in enumerate(first.run(shuffled(problem), engine="compiled", chunk=16), start=1):
        if number == stop:
            first.save(tmp_path / "checkpoint")
            break
    second = problem.learner(**setting)
    second.load(tmp_path / "checkpoint")
    assert second.position == stop
    found = [r.loss for r in second.run(shuffled(problem), engine="compiled", chunk=23, resume=True)]
    assert torch.equal(torch.stack(found), torch.stack(expected[stop:]))
    for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("setting", ALL, ids=name_of)
def test_a_sample_that_is_not_finite_is_skipped_or_named_as_in_the_eager_engine(setting: dict[str, Any]) -> None:
    problem = regression()
    problem.samples[24].target = torch.full((1, 2), torch.nan).double()
    problem.samples[37].u = torch.full((1, 3), torch.inf).double()
    skipping = [problem.learner(on_nonfinite="skip", **setting) for _ in range(2)]
    one = list(skipping[0].run(problem.samples))
    other = list(skipping[1].run(problem.samples, engine="compiled", chunk=16))
    assert [a.skipped for a in one] == [b.skipped for b in other]
    assert any(a.skipped for a in one)
    assert_same(*skipping, 1e-12)
    raising = [problem.learner(**setting) for _ in range(2)]
    messages, counts = [], []
    for learner, engine in zip(raising, ("eager", "compiled"), strict=True):
        reports: list[Any] = []
        with pytest.raises(hl.errors.NonFiniteError) as error:
            reports.extend(learner.run(problem.samples, engine=engine, chunk=16))
        messages.append(str(error.value))
        counts.append(learner.position)
    assert messages[0] == messages[1]
    assert counts[0] == counts[1]
    assert_same(*raising, 1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tau": -1.0}, "tau=-1.0 is not a time step"),
        ({"u": torch.zeros(1, 4).double()}, "could not take u=float64"),
        ({"target": torch.zeros(1, 5).double()}, "could not compare"),
    ],
)
def test_a_bad_sample_within_a_chunk_stops_the_run_where_it_stands(wrong: dict[str, Any], message: str) -> None:
    problem = regression()
    for name, value in wrong.items():
        setattr(problem.samples[20], name, value)
    eager, compiled = problem.learner(), problem.learner()
    for sample in problem.samples[:20]:
        eager.step(sample)
    reports = []
    with pytest.raises(hl.errors.SampleError, match=message):
        collect(compiled.run(problem.samples, engine="compiled", chunk=16), reports)
    assert len(reports) == 20
    for a, b in zip(eager.network.parameters(), compiled.network.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_an_echo_that_rebuilds_its_states_goes_on_eagerly_and_says_why() -> None:
    cell = hl.reversible.MidpointCell(hl.reversible.AntisymmetricLinear(4, inputs=3), size=4, tau=0.1).double()
    problem = regression()
    problem.samples[-1].boundary = True
    problem = Problem(
        hl.Network.recurrent(cell, nn.Linear(4, 2).double()), problem.loss, problem.hyper, problem.samples
    )
    learner = problem.learner(order="sequential", credit=hl.Echo(memory="reversible"))
    with pytest.warns(RuntimeWarning, match="rebuilds its states"):
        list(learner.run(problem.samples, engine="compiled"))


COMPILE_ONCE = """
import torch, hamlearn as hl
network = hl.Network.feedforward(torch.nn.Linear(3, 2))
learner = hl.Learner(network, torch.nn.functional.mse_loss, hl.Hyper(), order="sequential")
samples = [hl.Sample(torch.ones(1, 3), torch.zeros(1, 2))] * 9
for _ in range(2):
    list(learner.run(samples, engine="compiled"))
print("done")
"""


def test_without_a_compiler_it_goes_on_eagerly_and_says_so(tmp_path: Path) -> None:
    environment = {"PATH": "", "HOME": str(tmp_path), "HAMLEARN_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE_ONCE], env=environment, capture_output=True, text=True, check=True
    )
    assert "falls back to the eager engine: no C compiler was found" in run.stderr
    assert run.stdout == "done\n"


def test_a_second_run_while_the_first_goes_on_is_an_error_for_the_first() -> None:
    problem = regression()
    learner = problem.learner()
    first = learner.run(problem.samples, engine="compiled", chunk=8)
    taken = [next(first).sample for _ in range(3)]
    list(learner.run(problem.samples[30:33], engine="compiled"))
    with pytest.raises(hl.errors.StreamError, match="overtaken by a newer one"):
        next(first)
    eager = problem.learner()
    for sample in (*taken, *problem.samples[30:33]):
        eager.step(sample)
    torch.testing.assert_close(learner.state.h, eager.state.h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_source_or_schedule_that_fails_does_so_after_the_samples_before(engine: Any) -> None:
    problem = regression()

    def source() -> Any:
        yield from problem.samples[:10]
        raise OSError("the cable was pulled")

    learner = problem.learner()
    with pytest.raises(OSError, match="the cable"):
        list(learner.run(source(), engine=engine, chunk=16))
    assert learner.position == 10
    hyper = hl.Hyper(tau=0.5, eta=lambda t: 0.1 / (4 - t) ** 2, beta=0.01)
    learner = Problem(problem.network, problem.loss, hyper, problem.samples).learner()
    with pytest.raises(ZeroDivisionError):
        list(learner.run(problem.samples, engine=engine, chunk=16))
    assert learner.position == 8


def test_an_interrupt_within_a_block_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from hamlearn.engine.recorded import Engine

    problem = regression()
    learner, run = problem.learner(), Engine.run
    list(learner.run(problem.samples[:5], engine="compiled"))
    weights = [weight.detach().clone() for weight in learner.network.parameters()]

    def interrupted(self: Any, *args: Any) -> Any:
        run(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(learner.run(problem.samples, engine="compiled"))
    assert learner.state.t == 2.5
    for before, now in zip(weights, learner.network.parameters(), strict=True):
        assert torch.equal(before, now)


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu")])
@pytest.mark.parametrize("local", [False, True])
def test_a_learner_may_be_looked_at_in_any_mode_of_pytorch(mode: Any, local: bool) -> None:
    found = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        hyper, mse = hl.Hyper.from_sgd(lr=0.05), nn.functional.mse_loss
        learner: Any = hl.Learner(hl.Network.feedforward(net), mse, hyper)
        if local:
            learner = hl.local.LocalLearner(net, mse, hyper)
        told = []
        for count, report in enumerate(learner.run(random_samples(100), engine=engine), start=1):
            told.append((report.t, None if report.loss is None else report.loss.item()))
            if count in (20, 50):
                with mode():
                    learner.predict(torch.ones(3))
            if count == 80:
                break
        found.append((learner.position, learner.state.t, told, [weight.detach() for weight in net.parameters()]))
    eager, compiled = found
    assert compiled[:2] == eager[:2]
    assert compiled[2] == [(t, loss and pytest.approx(loss, rel=1e-4)) for t, loss in eager[2]]
    torch.testing.assert_close(compiled[3], eager[3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.GroupNorm(2, 4)])
def test_a_variance_that_overflows_is_refused_as_in_the_eager_engine(norm: nn.Module) -> None:
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), copy.deepcopy(norm), nn.Linear(4, 2))
        learner = hl.Learner(hl.Network.feedforward(net), nn.functional.mse_loss)
        samples = random_samples(20, batch=(2,), dtype=torch.float32)
        samples[9].u.mul_(1e30)
        with pytest.raises(hl.errors.NonFiniteError, match="the loss is nan at t=9"):
            list(learner.run(samples, engine=engine))
        assert learner.position == 9
