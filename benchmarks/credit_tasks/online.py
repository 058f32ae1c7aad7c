"""Online learning by a plain rule: the loop that a learner is, for rules that the library does not have.

Parameters, Adam's moments, h and what the rule carries are one flat list of tensors, so that the step is a pure
function, to be run by PyTorch or as a compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.credit_tasks.rules import Rule
from hamlearn._base.slots import Slots
from hamlearn.cells.columnar import slots

BETAS, EPS = (0.9, 0.999), 1e-8


class Adam:
    """Adam as PyTorch has it, on flat lists: carries (m, v, β₁ᵗ, β₂ᵗ, rate).

    The rate is carried too, so that one recording of a step serves all of them.
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def start(self, theta: Sequence[Tensor]) -> list[Tensor]:
        """Moments 0, powers 1."""
        zeros = [torch.zeros_like(weight) for weight in (*theta, *theta)]
        return [*zeros, *(theta[0].new_tensor(number) for number in (1.0, 1.0, self.lr))]

    def step(
        self, theta: list[Tensor], carried: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(θ⁺, what is carried on)."""
        count = len(theta)
        *moments, power1, power2, lr = carried
        power1, power2 = power1 * BETAS[0], power2 * BETAS[1]
        m = [BETAS[0] * a + (1 - BETAS[0]) * g for a, g in zip(moments[:count], grads, strict=True)]
        v = [BETAS[1] * a + (1 - BETAS[1]) * g * g for a, g in zip(moments[count:], grads, strict=True)]
        rate, scale = lr / (1 - power1), torch.rsqrt(1 - power2)
        moved = [w - rate * a / (torch.sqrt(b) * scale + EPS) for w, a, b in zip(theta, m, v, strict=True)]
        return moved, [*m, *v, power1, power2, lr]


class Online:
    """A cell, a linear readout, a rule and Adam; `step` is pure.

    Args:
        cell: With `local`, or `whole` for rules that need it.
        readout: Of what the cell shows.
        rule: Carries credit for the cell's weights.
        loss: Of y and target.
        lr: Adam's rate.
        frozen: Whether the cell's weights stay as they are.
    """

    def __init__(
        self,
        cell: Any,
        readout: nn.Module,
        rule: Rule,
        loss: Callable[[Tensor, Tensor], Tensor],
        lr: float,
        frozen: bool = False,
    ) -> None:
        self.net = nn.ModuleDict({"cell": cell, "readout": readout})
        self.cell, self.readout, self.rule, self.loss, self.adam = cell, readout, rule, loss, Adam(lr)
        self.names = [name for name, _ in self.net.named_parameters()]
        self.frozen = frozen
        self._lent = Slots(self.net)

    def start(self, u: Tensor) -> list[Tensor]:
        """The first carry, for inputs like `u` (lanes, inputs)."""
        theta = [weight.detach() for weight in self.net.parameters()]
        parts = [theta, self.adam.start(theta), slots(self.cell.initial_state(u)), self.rule.start(self.cell, u)]
        self.sizes = [len(part) for part in parts]
        return [tensor.detach() for part in parts for tensor in part]

    def step(self, *given: Tensor) -> list[Tensor]:
        """(carry, u, target, has, noise) to (carry, y): predict, then learn where there is a target."""
        theta, moments, h, carried, (u, target, has, noise) = self.parted(given)
        with self.at(theta):
            h, carried = self.rule.step(self.cell, u, h, carried, noise)
            y, grads = self.owed(h, carried, lambda y: self.loss(y, target))
        moved, after = self.adam.step(theta, moments, grads)
        theta = [torch.where(has, new, old) for new, old in zip(moved, theta, strict=True)]
        moments = [torch.where(has, new, old) for new, old in zip(after, moments, strict=True)]
        return [tensor.detach() for tensor in (*theta, *moments, *h, *carried, y)]

    def parted(self, given: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Weights, moments, h, what the rule carries, and the sample."""
        rest = list(given)
        parts = []
        for size in self.sizes:
            parts.append(rest[:size])
            rest = rest[size:]
        return (*parts, rest)

    def at(self, theta: list[Tensor]) -> AbstractContextManager[Any]:
        """The net with these weights, for as long as the context lasts."""
        return self._lent.exchanged(dict(zip(self.names, theta, strict=True)))

    def shown(self, h: list[Tensor]) -> Tensor:
        """What the readout sees."""
        visible = getattr(self.cell, "visible", None)
        return h[0] if visible is None else visible(h[0] if len(h) == 1 else tuple(h))

    def owed(
        self, h: list[Tensor], carried: list[Tensor], loss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """(y, gradients of all weights): the readout's by its graph, the cell's by z = ∂L/∂h and the rule."""
        own = [weight.detach().requires_grad_() for weight in self.readout.parameters()]
        names = [name for name, _ in self.readout.named_parameters()]
        state = [slot.detach().requires_grad_() for slot in h]
        with torch.enable_grad():
            y = torch.func.functional_call(self.readout, dict(zip(names, own, strict=True)), (self.shown(state),))
            found = torch.autograd.grad(loss(y), [*own, *state])
        with torch.no_grad():
            by_cell = self.rule.gradient(self.cell, carried, list(found[len(own) :]))
        grads = {f"cell.{name}": 0 * grad if self.frozen else grad for name, grad in by_cell.items()}
        grads |= {f"readout.{name}": grad for name, grad in zip(names, found, strict=False)}
        return y, [grads[name] for name in self.names]
