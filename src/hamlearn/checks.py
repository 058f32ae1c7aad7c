"""A conformance kit: put any learner, network, integrator or operation of a loop through it, ours or your own.

Each function raises `CheckFailedError`, with what was expected and what was found, or returns quietly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn import loops, reference
from hamlearn._base import trees
from hamlearn.credit import Forward
from hamlearn.errors import HamlearnError
from hamlearn.hyper import Hyper
from hamlearn.integrators import Integrator
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample, StepReport

Contents = dict[str, Any]
"""Tensors and other values of a state, by name."""


class CheckFailedError(AssertionError):
    """The object under test does not keep a promise that users rely on.

    What to do: the message says what was expected and what was found; fix the object under test.

    Example:
        >>> import hamlearn as hl
        >>> class Optimist(hl.Euler):
        ...     order = 3
        >>> hl.checks.check_integrator(Optimist())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hamlearn.checks.CheckFailedError: Optimist() says order 3 but its error falls with order 1...
    """


class AnyLearner(Protocol):
    """What a learner must offer to be checked.

    Example:
        >>> import hamlearn as hl
        >>> methods = ("step", "run", "predict", "state_dict", "load_state_dict")
        >>> all(hasattr(hl.Learner, name) and hasattr(hl.local.LocalLearner, name) for name in methods)
        True
    """

    def step(self, sample: Sample) -> StepReport:
        """Learn one sample."""

    def run(self, stream: Iterable[Sample], max_steps: int | None = None) -> Iterable[StepReport]:
        """Learn a stream."""

    def predict(self, u: Any) -> Any:
        """Answer, and move nothing."""

    def state_dict(self) -> dict[str, Any]:
        """All that it is between two samples, as a value."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become that again."""


def check_learner(make: Callable[[], AnyLearner], samples: Sequence[Sample]) -> None:
    """Check that a learner is reproducible, pure in `predict`, resumable bit-for-bit, and safe from bad samples.

    Args:
        make: Builds the learner, the same each time (seed what is random in it).
        samples: At least four samples that it can take; some should have targets.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make():
        ...     torch.manual_seed(0)
        ...     network = hl.Network.recurrent(torch.nn.GRUCell(2, 3), torch.nn.Linear(3, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss)
        >>> samples = [hl.Sample(torch.randn(1, 2), torch.randn(1, 1)) for _ in range(6)]
        >>> hl.checks.check_learner(make, samples)
    """
    if len(samples) < 4:
        raise CheckFailedError(f"check_learner needs at least 4 samples, got {len(samples)}")
    whole = _contents_after(make, samples)
    _compare(whole, _contents_after(make, samples), "two runs from the same start")
    _check_predict(make, samples, whole)
    _check_resume(make, samples, whole)
    _check_bad_tau(make, samples)
    _check_reports(make, samples)


def check_network(network: Network, u: Any, target: Any, loss: Callable[..., Tensor] | None = None) -> None:
    """Check that a network's state keeps its shape and that both orders agree with the reference on it.

    Args:
        network: The network; it is copied and not changed.
        u: An input for it.
        target: A target for `loss`.
        loss: L(y, target); mean squared error if not given.

    Example:
        >>> import torch, hamlearn as hl
        >>> network = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> hl.checks.check_network(network, torch.randn(5, 2), torch.randn(5, 1))
    """
    loss = loss or nn.functional.mse_loss
    named = [name for name, _ in network.named_parameters()]
    strange = [name for name in named if not name.startswith(("state.", "output.", "h0_"))]
    if strange:
        raise CheckFailedError(f"parameters must be named state.… or output.…, found {strange}")
    hyper = Hyper(tau=0.25, eta=0.1, beta=1e-3)
    samples = [Sample(u, target), Sample(u), Sample(u, target, tau=0.5, boundary=True), Sample(u, target)]
    for order in ("parallel", "sequential"):
        setting: dict[str, Any] = {"order": order, "credit": Forward()}
        learner = Learner(copy.deepcopy(network).eval(), loss, hyper, **setting)
        judge = reference.run(copy.deepcopy(network).eval(), loss, hyper, samples, **setting)
        for sample, (state, _) in zip(samples, judge, strict=True):
            learner.step(sample)
            theta = dict(learner.network.named_parameters())
            for name, weight in state.theta.items():
                _check_close(theta[name].detach(), weight, f"weight {name} in {order} order")


def check_integrator(integrator: Integrator) -> float:
    """Measure the order of convergence on a problem with a known solution; returns it.

    The problem is ẋ = cos(t)·x with the solution exp(sin t); for a partitioned integrator q̇ = p and
    ṗ = −q³ + cos³t − cos t with the solution q = cos t.

    Example:
        >>> import hamlearn as hl
        >>> round(hl.checks.check_integrator(hl.Heun()))
        2
    """
    counts, errors = [20, 40, 80, 160], []
    one = torch.ones(1, dtype=torch.float64)
    start, derivative, end = [one], _growth, np.exp(np.sin(2.0))
    if integrator.partitioned:
        start, derivative, end = [one, 0 * one], _swing, np.cos(2.0)
    for count in counts:
        x, tau = start, 2.0 / count
        for k in range(count):
            slope = integrator.slope(derivative, k * tau, x, tau)
            x = [a + tau * b for a, b in zip(x, slope, strict=True)]
        errors.append(abs(x[0].item() - end))
    order = float(-np.polyfit(np.log(counts), np.log(errors), 1)[0])
    if abs(order - integrator.order) > 0.2:
        raise CheckFailedError(
            f"{integrator!r} says order {integrator.order} but its error falls with order {order:.2f}"
        )
    return order


def check_operation(function: Callable[..., Any], *inputs: Tensor) -> None:
    """Check that a function of tensors gives in a compiled loop what PyTorch gives.

    Args:
        function: A pure function of tensors, for example a single operation.
        inputs: What it is called with.

    Raises:
        UnsupportedError: An operation in it has no loops.

    Example:
        >>> import torch, hamlearn as hl
        >>> hl.checks.check_operation(torch.atan2, torch.randn(3), torch.randn(3))
    """
    with torch.no_grad():
        wanted = trees.flatten(function(*inputs))[0]
        rows = tuple(x[None] for x in inputs)
        _, found = loops.scan(lambda carry, x: (carry, function(*x)), torch.zeros(1), rows)
    for want, got in zip(wanted, trees.flatten(found)[0], strict=True):
        if got[0].dtype != want.dtype or got[0].shape != want.shape:
            raise CheckFailedError(f"a loop gives {trees.describe(got[0])}, PyTorch {trees.describe(want)}")
        _check_close(got[0].double(), want.double(), "a loop", 1e-12 if want.dtype == torch.float64 else 1e-6)


def _growth(t: float, x: list[Tensor]) -> list[Tensor]:
    return [np.cos(t) * x[0]]


def _swing(t: float, x: list[Tensor]) -> list[Tensor]:
    q, p = x
    return [p, np.cos(t) ** 3 - np.cos(t) - q**3]


def _check_predict(make: Callable[[], AnyLearner], samples: Sequence[Sample], whole: Contents) -> None:
    torch.manual_seed(0)
    learner = make()
    for sample in samples:
        first, again = learner.predict(sample.u), learner.predict(sample.u)
        for a, b in zip(trees.flatten(first)[0], trees.flatten(again)[0], strict=True):
            if not torch.equal(a, b):
                raise CheckFailedError(
                    "predict() gave two answers to one input: it moved something or drew at random"
                )
        learner.step(sample)
    _compare(whole, _contents(learner), "runs with and without predict() before each step")


def _check_resume(make: Callable[[], AnyLearner], samples: Sequence[Sample], whole: Contents) -> None:
    for cut in (1, len(samples) // 2, len(samples) - 1):
        torch.manual_seed(0)
        learner = make()
        for sample in samples[:cut]:
            learner.step(sample)
        state = learner.state_dict()
        before = _flat(state)
        resumed = make()
        resumed.load_state_dict(state)
        for sample in samples[cut:]:
            resumed.step(sample)
        _compare(whole, _contents(resumed), f"a run that was saved and loaded after {cut} samples")
        learner.step(samples[cut])
        _compare(before, _flat(state), "a state before and after the steps that followed: it shares memory and")


def _check_bad_tau(make: Callable[[], AnyLearner], samples: Sequence[Sample]) -> None:
    torch.manual_seed(0)
    learner = make()
    learner.step(samples[0])
    before = _contents(learner)
    for tau in (0.0, -1.0, float("nan"), float("inf")):
        try:
            learner.step(Sample(samples[0].u, samples[0].target, tau=tau))
        except HamlearnError:
            pass
        else:
            raise CheckFailedError(f"a sample with tau={tau} was accepted: raise SampleError")
    _compare(before, _contents(learner), "before and after samples with a bad tau")


def _check_reports(make: Callable[[], AnyLearner], samples: Sequence[Sample]) -> None:
    for report in make().run(samples, max_steps=len(samples)):
        for tensor in (*trees.flatten(report.y)[0], report.loss):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise CheckFailedError("a report holds a graph: detach y and loss, or memory grows without bound")


def _contents_after(make: Callable[[], AnyLearner], samples: Sequence[Sample]) -> Contents:
    torch.manual_seed(0)
    learner = make()
    for sample in samples:
        learner.step(sample)
    return _contents(learner)


def _contents(learner: AnyLearner) -> Contents:
    """All that the learner is, whatever it is made of."""
    return _flat(learner.state_dict())


def _flat(value: Any, name: str = "") -> Contents:
    """Tensors, as copies, and numbers of a state by name; words only say what it belongs to."""
    if isinstance(value, Tensor):
        return {name: value.detach().clone()}
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [_flat(item, f"{name}.{key}".strip(".")) for key, item in items]
        return {key: entry for part in parts for key, entry in part.items()}
    return {name: value} if isinstance(value, bool | int | float) else {}


def _compare(one: Contents, other: Contents, what: str) -> None:
    if one.keys() != other.keys():
        raise CheckFailedError(f"{what} hold different things: {sorted(one.keys() ^ other.keys())}")
    for name, value in one.items():
        twin = other[name]
        both = isinstance(value, Tensor) and isinstance(twin, Tensor)
        if not (torch.equal(value, twin) if both else type(value) is type(twin) and value == twin):
            raise CheckFailedError(f"{what} differ in {name}")


def _check_close(got: Tensor, want: Tensor, what: str, bound: float | None = None) -> None:
    if bound is None:
        bound = 1e-12 if got.dtype == torch.float64 else 1e-5
    gap = ((got - want).abs().max() / (1 + want.abs().max())).item()
    if not gap <= bound:
        raise CheckFailedError(f"{what} is off the reference by {gap:.1e}, more than {bound:.0e}")
