"""ω and its increments, which may be kept as the two factors that they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_add_, foreach_mul
from hamlearn.state.tensors import Tensors


class Outer:
    """Σ_b δ_b x_bᵀ of a layer, or of each in a stack, kept as δ and x, and never written out to move weights.

    Memory is what limits a tick of large layers, and these factors are smaller than the weights by their width.

    Args:
        delta: (rows, m), or (layers, rows, n).
        x: (rows, n), or (layers, rows, n).

    Example:
        >>> import torch
        >>> Outer(torch.ones(1, 1, 2), torch.tensor([[[3.0, 4.0]]])).dense()
        tensor([[[3., 4.],
                 [3., 4.]]])
    """

    __slots__ = ("delta", "x")

    def __init__(self, delta: Tensor, x: Tensor) -> None:
        self.delta = delta
        self.x = x

    def dense(self) -> Tensor:
        """The product, written out."""
        columns = self.delta.transpose(-2, -1)
        return columns * self.x if self.x.shape[-2] == 1 else columns @ self.x

    def add_to_(self, target: Tensor, alpha: float) -> None:
        """Add alpha·Σ_b δ_b x_bᵀ to `target`, in one pass over it."""
        columns = self.delta.transpose(-2, -1)
        if self.x.shape[-2] == 1:
            # For one row this is several times faster than a matrix product.
            target.addcmul_(columns, self.x, value=alpha)
        elif self.x.dim() == 2:
            target.addmm_(columns, self.x, alpha=alpha)
        else:
            target.baddbmm_(columns, self.x, alpha=alpha)


Increment = Tensor | Outer
Omega = Tensor | Outer


def dense(value: Tensor | Outer) -> Tensor:
    """A tensor, whichever form it was kept in."""
    return value.dense() if isinstance(value, Outer) else value


def add_at(total: list[Increment | None], slots: Sequence[int], grads: Sequence[Increment]) -> None:
    """Sum increments by slot; tied weights, which are never stacked, get several."""
    for slot, grad in zip(slots, grads, strict=True):
        before = total[slot]
        total[slot] = grad if before is None else dense(before) + dense(grad)


def costate(omega: list[Omega], grads: list[Increment | None], decay: float, gain: float) -> list[Omega]:
    """ω⁺ = decay·ω + gain·g, rounded as PyTorch's momentum buffer is; `decay·ω` where g is missing."""
    if decay == 0.0 and gain == 1.0:
        return [torch.zeros_like(dense(w)) if g is None else g for w, g in zip(omega, grads, strict=True)]
    moved = foreach_mul([dense(w) for w in omega], decay)
    plain = [(w, g) for w, g in zip(moved, grads, strict=True) if isinstance(g, Tensor)]
    if plain:
        foreach_add_([w for w, _ in plain], [g for _, g in plain], alpha=gain)
    for w, g in zip(moved, grads, strict=True):
        if isinstance(g, Outer):
            g.add_to_(w, gain)
    return list(moved)


def saved(value: Omega, name: str) -> dict[str, Tensor]:
    """What a checkpoint holds of a costate: its value and, if it is kept as factors, these too.

    Weights that move by factors are rounded once, and by their product twice: to continue bit-for-bit, a learner
    needs the form as well as the value.
    """
    found = {f"omega/{name}": dense(value)}
    if isinstance(value, Outer):
        found |= {f"factors/{name}/delta": value.delta, f"factors/{name}/x": value.x}
    return found


def loaded(left: Tensors, name: str, like: Tensor, device: torch.device) -> Omega:
    """The costate that `saved` wrote under a name, in its form; raises `ValueError` if it cannot be."""
    value = left.keep(f"omega/{name}", device, like)
    if f"factors/{name}/delta" not in left:
        return value
    delta, x = (left.keep(f"factors/{name}/{part}", device) for part in ("delta", "x"))
    layers = like.shape[:-2]
    expected = [(*layers, delta.shape[-2] if delta.dim() > 1 else 0, width) for width in like.shape[-2:]]
    if [tuple(delta.shape), tuple(x.shape)] != expected or {delta.dtype, x.dtype} != {like.dtype}:
        raise ValueError(f"the factors of the costate {name} do not make a product of {list(like.shape)}")
    return Outer(delta, x)
