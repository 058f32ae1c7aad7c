"""Who is measured by `hamlearn bench stream`: loops of SGD and of Hamiltonian Learning over one stream.

Each function takes a problem and returns a pass over its samples. A pass continues where the last one ended, and
returns the losses of all its steps, on the CPU, in order.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks._stream_workloads import MOMENTUM, Problem
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.sample import StepReport
from hamlearn.streams import Stream, from_dataset

CHUNK = 256
"""Steps that compiled loops take at a time."""
Pass = Callable[[], Tensor]


def sgd_eager(problem: Problem) -> Pass:
    """What one writes with PyTorch: zero_grad, forward, loss, backward, step; the state is detached."""
    network, work = copy.deepcopy(problem.network), problem.workload
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr, momentum=MOMENTUM)

    def step(u: Tensor, target: Tensor, h: Any) -> tuple[Tensor, Any]:
        optimizer.zero_grad()
        y, h = work.advance(network, u, h)
        loss = work.loss(y, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), _detached(h)

    return _over_rows(problem, step)


def sgd_compiled(problem: Problem) -> Pass:
    """The same loop with forward, loss, backward and the optimizer's step each compiled by `torch.compile`."""
    network, work = copy.deepcopy(problem.network), problem.workload
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr, momentum=MOMENTUM)
    advance, loss_of = work.advance, work.loss

    @torch.compile
    def forward(u: Tensor, target: Tensor, h: Any) -> tuple[Tensor, Any]:
        y, h = advance(network, u, h)
        return loss_of(y, target), h

    update = torch.compile(optimizer.step)

    def step(u: Tensor, target: Tensor, h: Any) -> tuple[Tensor, Any]:
        optimizer.zero_grad()
        loss, h = forward(u, target, h)
        loss.backward()
        update()
        return loss.detach(), _detached(h)

    return _over_rows(problem, step)


def sgd_one_graph(problem: Problem) -> Pass:
    """The whole step as one function of tensors (`torch.func`), and `torch.compile` makes one graph of it."""
    network, work = copy.deepcopy(problem.network), problem.workload
    theta = {name: weight.detach() for name, weight in network.named_parameters()}
    omega = {name: torch.zeros_like(weight) for name, weight in theta.items()}
    advance, loss_of, lr = work.advance, work.loss, work.lr

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, u: Tensor, target: Tensor, h: Any) -> tuple[Tensor, Any]:
            y, h = advance(self.network, u, h)
            return loss_of(y, target), h

    module = Step()

    def loss(theta: dict[str, Tensor], u: Tensor, target: Tensor, h: Any) -> Any:
        return torch.func.functional_call(module, {f"network.{k}": v for k, v in theta.items()}, (u, target, h))

    gradient = torch.func.grad_and_value(loss, has_aux=True)

    @torch.compile(fullgraph=True)
    def graph(
        theta: dict[str, Tensor], omega: dict[str, Tensor], u: Tensor, target: Tensor, h: Any
    ) -> tuple[Tensor, Any]:
        grads, (value, h) = gradient(theta, u, target, h)
        for name in theta:
            omega[name].mul_(MOMENTUM).add_(grads[name])
            theta[name].sub_(lr * omega[name])
        return value, h

    return _over_rows(problem, lambda u, target, h: graph(theta, omega, u, target, h))


def hl_eager(problem: Problem) -> Pass:
    """`learner.run(stream)`, every loss read from its report."""
    learner, stream = _learner(problem), _stream(problem)
    return lambda: torch.stack([report.loss for report in learner.run(stream) if report.loss is not None]).cpu()


def hl_compiled(problem: Problem) -> Pass:
    """`learner.run(stream, engine="compiled")`, every report taken, losses collected block by block."""
    learner, stream = _learner(problem), _stream(problem)

    def one_pass() -> Tensor:
        losses: list[Tensor] = []
        for number, report in enumerate(_compiled_reports(learner, stream)):
            if number % CHUNK == 0:
                losses.append(report._block.ran.loss)  # type: ignore[attr-defined]
        return torch.cat(losses).cpu()

    return one_pass


def hl_each_loss(problem: Problem) -> Pass:
    """The same, with every loss read from its report, as a consumer of an eager run reads it."""
    learner, stream = _learner(problem), _stream(problem)

    def one_pass() -> Tensor:
        reports = _compiled_reports(learner, stream)
        return torch.stack([report.loss for report in reports if report.loss is not None]).cpu()

    return one_pass


def hl_scan(problem: Problem) -> Pass:
    """`learner.scan(u, target)`, all steps in one call, with outputs, losses and Hamiltonians of all of them."""
    learner, u, target = _learner(problem), problem.u[:, None], problem.target[:, None]
    losses = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="engine='compiled'", category=RuntimeWarning)
        losses.append(learner.scan(u, target).loss)

    def one_pass() -> Tensor:
        loss = losses.pop() if losses else learner.scan(u, target).loss
        assert loss is not None
        return loss.cpu()

    return one_pass


def hl_loop(problem: Problem) -> Pass:
    """The compiled loop alone, over blocks that are ready: no stream, no reports, nothing that can be undone."""
    learner, stream = _learner(problem), _stream(problem)
    list(_compiled_reports(learner, stream))
    assert learner._blocks is not None
    ((made,),) = learner._blocks.engine.steps._made.values()
    recorded, loop = made.recorded, made.loop
    calls: list[tuple[list[Tensor], list[Tensor], list[Tensor]]] = []

    def listen(steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]) -> list[Tensor]:
        calls.append((carry, samples, constants))
        results: list[Tensor] = loop(steps, carry, samples, constants)
        return results

    made.loop = listen
    list(_compiled_reports(learner, stream))
    constants, start = calls[0][2], [weight.detach().clone() for weight in problem.network.parameters()]
    carry = start + [torch.zeros_like(tensor) for tensor in calls[0][0][len(start) :]]

    def one_pass() -> Tensor:
        results = [loop(len(samples[0]), carry, samples, constants) for _, samples, _ in calls]
        return torch.cat([recorded.read_results(rows)["loss"][0] for rows in results]).cpu()

    return one_pass


def _learner(problem: Problem) -> Learner:
    work = problem.workload
    hyper = Hyper.from_sgd(work.lr, MOMENTUM)
    return Learner(copy.deepcopy(problem.network), work.loss, hyper, order="sequential", credit=work.credit)


def _stream(problem: Problem) -> Stream:
    return from_dataset(TensorDataset(problem.u, problem.target))


def _compiled_reports(learner: Learner, stream: Stream) -> Iterator[StepReport]:
    with warnings.catch_warnings():
        # A learner that falls back to the eager engine is another contender.
        warnings.filterwarnings("error", message="engine='compiled'", category=RuntimeWarning)
        yield from learner.run(stream, engine="compiled", chunk=CHUNK)


def _over_rows(problem: Problem, step: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]) -> Pass:
    """A pass of a step over samples that lie ready one by one, which is more than a data loader would do."""
    h = () if problem.network.state is None else problem.network.initial_state(problem.u[:1])
    samples = list(zip(problem.u.split(1), problem.target.split(1), strict=True))

    def one_pass() -> Tensor:
        nonlocal h
        losses = []
        for u, target in samples:
            loss, h = step(u, target, h)
            losses.append(loss)
        return torch.stack(losses).cpu()

    return one_pass


def _detached(h: Any) -> Any:
    return tuple(part.detach() for part in h) if isinstance(h, tuple) else h.detach()
