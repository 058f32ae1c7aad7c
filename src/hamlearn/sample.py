"""What goes in, what is carried along, and what comes out: `Sample`, `Label`, `State`, `StepReport`, `Trace`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from hamlearn._base.torch_private import tree_map_only

Tree = Any
"""A tensor, or tuples, lists and dicts of tensors."""
Id = str | int
"""What a label calls its sample by."""


class Scale(NamedTuple):
    """How a target was scaled: target = (target of the data − mean) / spread.

    Attributes:
        mean: Of the targets before this one.
        spread: Their standard deviation; 0 where there were none, or all were equal.
        target: The target in the unit of the data; `None` where the sample has none.

    Example:
        >>> import torch
        >>> scale = Scale(torch.tensor([100.0]), torch.tensor([20.0]), torch.tensor([130.0]))
        >>> scale.unscale(torch.tensor([1.5]))
        tensor([130.])
    """

    mean: Tensor
    spread: Tensor
    target: Tensor | None = None

    def unscale(self, y: Tensor) -> Tensor:
        """A prediction in the unit of the data, y·spread + mean."""
        return y * self.spread.to(y) + self.mean.to(y)

    def row(self, index: int | slice) -> Scale:
        """Of scales with time as first axis, those of one sample, or of some."""
        return Scale(self.mean[index], self.spread[index], None if self.target is None else self.target[index])


@dataclass(slots=True)
class Sample:
    """What a stream yields at one instant: an input and, now and then, a target.

    Args:
        u: The input, a tensor or a pytree of tensors, in the form the network takes.
        target: What the output should have been (ŷ); `None` if it is not known. The step is still
            integrated then: the state moves and the costates dissipate and propagate.
        tau: Time since the previous sample (τ); `None` takes `Hyper.tau`.
        boundary: Whether this is the last token of a sequence. Afterwards the state returns to `h0`
            and its costate to zero; the costate of the weights stays.
        id: What a `Label` that comes later calls it by; of a sample with a target, its name in records.
        scale: How `streams.standardize(stream, scale_target=True)` scaled its target; `None` if it did not.

    Example:
        >>> import torch
        >>> Sample(torch.tensor([0.5]), target=torch.tensor([1.0]), tau=0.1).boundary
        False
    """

    u: Tree
    target: Tree | None = None
    tau: float | None = None
    boundary: bool = False
    id: Id | None = None
    scale: Scale | None = None


@dataclass(slots=True)
class Label:
    """The target of an earlier sample, as an event of its own in a stream.

    Args:
        id: The `id` of the sample.
        target: What the output should have been.
        scale: How the target was scaled; `None` where it was not.

    Example:
        >>> Label("order 66", target=1).id
        'order 66'
    """

    id: Id
    target: Tree
    scale: Scale | None = None


@dataclass(slots=True)
class State:
    """A snapshot of all that a learner carries from one step to the next, but for the weights.

    The weights θ live in the network's parameters. `omega` maps each parameter's name to its costate.
    The tensors are the learner's own, not copies.

    Attributes:
        t: Time, the sum of all τ so far.
        h: State of the neurons; `None` where the network has no state net or has not seen input yet.
        z: Costate of `h`, in the same structure.
        omega: Costate of the weights (ω), by parameter name.
        updates: Number of weight updates that a loss has entered.
        v: What an adaptive β follows, by parameter name; empty where β does not adapt.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> _ = learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1)))
        >>> learner.state.t, sorted(learner.state.omega), learner.state.updates
        (1.0, ['output.bias', 'output.weight'], 1)
    """

    t: float
    h: Tree | None
    z: Tree | None
    omega: dict[str, Tensor]
    updates: int
    v: dict[str, Tensor] = field(default_factory=dict)


class StepReport:
    """What one step yields.

    Attributes:
        t: Time before the step, which advances it by the τ of the sample; for a label, when the label came.
        y: The output, detached from any graph; for a label, what the network had answered to its sample.
        loss: L(y, target), a detached scalar tensor; `None` without target. For a label, the loss of the present
            weights on its sample.
        sample: The sample that `y` and `loss` belong to; `None` while a pipeline fills, and for a label whose
            sample is not known any more.
        skipped: Whether the step was undone because a value was not finite (`on_nonfinite="skip"`).
        late: Whether the target came as a `Label`, after its sample.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> report = learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1)))
        >>> report.t, report.y.shape, bool(report.hamiltonian == report.loss), report.skipped
        (0.0, torch.Size([1, 1]), True, False)
        >>> learner.step(hl.Sample(torch.ones(1, 2))).loss is None
        True
    """

    __slots__ = ("_coupling", "_phi", "late", "loss", "sample", "skipped", "t", "y")

    def __init__(
        self,
        t: float,
        y: Tree,
        loss: Tensor | None,
        sample: Sample | None,
        *,
        phi: float = 1.0,
        coupling: Tensor | Callable[[], Tensor] | None = None,
        skipped: bool = False,
        late: bool = False,
    ) -> None:
        self.t = t
        self.y = y
        self.loss = loss
        self.sample: Any = sample
        self.skipped = skipped
        self.late = late
        self._phi = phi
        self._coupling = coupling

    @property
    def hamiltonian(self) -> Tensor | float:
        """H = φ·L + ⟨z, f_h⟩ (Eq. 9), with the costate z that the step began with.

        Where weights decay by `Hyper.weight_decay`, the penalty φ·½λ|θ|² is part of it, but for tokens that echo.
        """
        H: Tensor | float = 0.0
        if self.loss is not None:
            H = self._phi * self.loss
        if self._coupling is not None:
            H = H + (self._coupling() if callable(self._coupling) else self._coupling)
        return H

    def __repr__(self) -> str:
        loss = None if self.loss is None else f"{float(self.loss):.6g}"
        return f"StepReport(t={self.t:g}, loss={loss}, hamiltonian={float(self.hamiltonian):.6g})"


def reported(tree: Any) -> Any:
    """An output as a report shows it: cut from any graph, and no view of a weight, which is about to move.

    Example:
        >>> import torch
        >>> weight = torch.ones(2, requires_grad=True)
        >>> y = reported(weight[0])
        >>> y.requires_grad, y.data_ptr() == weight.data_ptr()
        (False, False)
    """
    if not isinstance(tree, Tensor):
        return tree_map_only(Tensor, reported, tree)
    shares = tree._is_view() or (tree.is_leaf and tree.requires_grad)
    return tree.detach().clone() if shares else tree.detach()


@dataclass(frozen=True, slots=True)
class Trace:
    """What many steps yield, as whole tensors; time is the first axis of each.

    Attributes:
        t: Time before each step, which advances it by the τ of its sample.
        y: Outputs, in the structure of one.
        loss: L(y, target), not a number at steps without a target; `None` where no target was given.
        hamiltonian: H = φ·L + ⟨z, f_h⟩, as in `StepReport`.
        skipped: Whether a step was undone because a value was not finite (`on_nonfinite="skip"`).
        h: State that each step led to, if `scan` was to keep it; at a boundary, before it returned to h0.
        z: Costate of the state, likewise.
        omega: Costate of the weights, likewise, by parameter name.
        theta: The weights, likewise, by parameter name.
        v: What an adaptive β follows, likewise, by parameter name.
        E: Sensitivities, likewise, as the order lays them out.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> trace = learner.scan(torch.ones(5, 1, 2), torch.ones(5, 1, 1))
        >>> len(trace), trace.y.shape, trace.t.tolist()
        (5, torch.Size([5, 1, 1]), [0.0, 1.0, 2.0, 3.0, 4.0])
    """

    t: Tensor
    y: Tree
    loss: Tensor | None
    hamiltonian: Tensor
    skipped: Tensor
    h: Tree | None = None
    z: Tree | None = None
    omega: dict[str, Tensor] | None = None
    theta: dict[str, Tensor] | None = None
    v: dict[str, Tensor] | None = None
    E: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.t)
