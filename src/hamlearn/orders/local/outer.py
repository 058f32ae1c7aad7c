"""Increments of weights as the two factors that they are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors


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
        if target.dtype is not self.x.dtype:
            # The sum is rounded to the type of narrow weights once.
            target.add_(self.dense(), alpha=alpha)
        elif self.x.shape[-2] == 1:
            # For one row this is several times faster than a matrix product.
            target.addcmul_(columns, self.x, value=alpha)
        elif self.single:
            target.addmm_(columns, self.x, alpha=alpha)
        else:
            target.baddbmm_(columns, self.x, alpha=alpha)

    @property
    def single(self) -> bool:
        """Whether this is one matrix and no stack."""
        return self.x.dim() == 2

    def bound(self) -> float:
        """A bound on the size of every entry of the product: each is at most ‖δ‖·‖x‖."""
        return torch.linalg.vector_norm(self.delta).item() * torch.linalg.vector_norm(self.x).item()


class Gathered(Outer):
    """ω⁺ = decay·ω + gain·Σ_b δ_b x_bᵀ of one layer, made in ω's own memory once a tick is accepted.

    Args:
        omega: ω before the tick.
        product: The sum.
        decay: What is left of ω.
        gain: Scale of the sum.
        size: A bound on the size of every entry of ω.

    Example:
        >>> import torch
        >>> omega = torch.ones(1, 2)
        >>> after = Gathered(omega, Outer(torch.ones(1, 1), torch.tensor([[3.0, 4.0]])), 0.5, 1.0, size=1.0)
        >>> after.dense(), after.bound() >= 4.5, omega
        (tensor([[3.5000, 4.5000]]), True, tensor([[1., 1.]]))
        >>> after.make(), after.make(), omega
        (None, None, tensor([[3.5000, 4.5000]]))
    """

    def __init__(self, omega: Tensor, product: Outer, decay: float, gain: float, size: float) -> None:
        super().__init__(product.delta, product.x)
        self.omega, self.decay, self.gain = omega, decay, gain
        self._bound = abs(decay) * size + abs(gain) * super().bound()
        self._version: int | None = None

    def dense(self) -> Tensor:
        """ω⁺, beside ω."""
        return self.omega.addmm(self.delta.t(), self.x, beta=self.decay, alpha=self.gain)

    def make(self) -> None:
        """ω ← ω⁺, unless that has been done."""
        if self._version is None:
            self._version = self.omega._version
        if self.omega._version == self._version:
            self.omega.addmm_(self.delta.t(), self.x, beta=self.decay, alpha=self.gain)

    def bound(self) -> float:
        """A bound on the size of every entry of ω⁺."""
        return self._bound


def dense(value: Tensor | Outer) -> Tensor:
    """A tensor, whichever form it was kept in."""
    return value.dense() if isinstance(value, Outer) else value


def told(value: Tensor | Outer, name: str) -> dict[str, Tensor]:
    """What a checkpoint holds of a costate: its value and, where it is kept as factors, these too.

    Weights that move by factors are rounded once, and by their product twice: to go on bit for bit, a learner
    needs the form as well as the value.
    """
    found = {f"omega/{name}": dense(value)}
    if isinstance(value, Outer):
        found |= {f"factors/{name}/delta": value.delta, f"factors/{name}/x": value.x}
    return found


def kept(left: Tensors, name: str, like: Tensor, device: torch.device) -> Tensor | Outer:
    """The costate that was told under a name, in the form that it had; raises `ValueError` where it cannot be."""
    value = left.keep(f"omega/{name}", device, like)
    if f"factors/{name}/delta" not in left:
        return value
    delta, x = (left.keep(f"factors/{name}/{part}", device) for part in ("delta", "x"))
    layers = like.shape[:-2]
    expected = [(*layers, delta.shape[-2] if delta.dim() > 1 else 0, width) for width in like.shape[-2:]]
    if [tuple(delta.shape), tuple(x.shape)] != expected or {delta.dtype, x.dtype} != {like.dtype}:
        raise ValueError(f"the factors of the costate {name} do not make a product of {list(like.shape)}")
    return Outer(delta, x)
