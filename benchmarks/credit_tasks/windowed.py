"""Truncated BPTT, plainly: autograd through a window of steps, one update of Adam at its end."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.credit_tasks.online import Online
from benchmarks.credit_tasks.rules import Own
from hamlearn.cells.columnar import slots


class Windowed(Online):
    """The online loop by windows: a sample is a window of rows; nothing but the state passes from one to the next.

    The losses of a window are summed. That is the gradient which `Echo(every=window)` finds.
    """

    def step(self, *given: Tensor) -> list[Tensor]:
        """(carry, u, target, has, signs), with rows of a window each, to (carry, y of all rows)."""
        theta, moments, h, _, (u, target, has, _) = self.parted(given)
        leaves = [weight.detach().requires_grad_() for weight in theta]
        told, total = [], theta[0].new_zeros(())
        with torch.enable_grad(), self.at(leaves):
            for k in range(len(u)):
                h = slots(self.cell(u[k], h[0] if len(h) == 1 else tuple(h)))
                told.append(self.readout(self.shown(h)))
                total = total + torch.where(has[k], self.loss(told[-1], target[k]), torch.zeros_like(total))
            grads = list(torch.autograd.grad(total, leaves))
        moved, after = self.adam.step(theta, moments, grads)
        learned = has.any()
        theta = [torch.where(learned, new, old) for new, old in zip(moved, theta, strict=True)]
        moments = [torch.where(learned, new, old) for new, old in zip(after, moments, strict=True)]
        return [tensor.detach() for tensor in (*theta, *moments, *h, torch.stack(told))]

    def start(self, u: Tensor) -> list[Tensor]:
        """The first carry, for inputs like `u` (lanes, inputs); nothing is carried for credit."""
        carry = super().start(u)
        self.sizes[-1] = 0
        return carry[: sum(self.sizes)]


def windows(rows: Tensor, length: int) -> Tensor:
    """Rows (steps, …) as (windows, length, …); those that fill no window are left out.

    Example:
        >>> windows(torch.arange(7), 3).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    count = len(rows) // length
    return rows[: count * length].reshape(count, length, *rows.shape[1:])


NO_RULE = Own(keep=0.0)
"""What `Windowed` is given for a rule: it carries nothing by it."""
