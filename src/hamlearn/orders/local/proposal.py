"""What one tick proposes, and how ω takes it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_add_, foreach_mul
from hamlearn.orders.local.outer import Gathered, Outer, dense
from hamlearn.sample import Sample

Omega = Tensor | Outer


@dataclass(slots=True)
class Done:
    """A sample whose output is complete: when it was taken, y, L, and ⟨z, ḣ⟩ at that tick."""

    sample: Sample
    t: float
    y: Any
    loss: Tensor | None
    coupling: Callable[[], Tensor] | None = None


@dataclass(slots=True)
class Proposal:
    """What a tick would change, before anybody has agreed to it.

    Attributes:
        grads: z·∂ĥ/∂θ by slot, `None` where nothing arrived.
        h: New states, to be looked at before they are taken.
        z: New costates, likewise.
        loss: Loss that was computed in this tick.
        entered: Whether a loss entered a costate.
        commit: Takes the new states and costates; that may be asked for again where it was interrupted.
        done: What to report, if an output is complete with this tick.
    """

    grads: list[Tensor | Outer | None]
    h: list[Tensor]
    z: list[Tensor]
    loss: Tensor | None
    entered: bool
    commit: Callable[[], None]
    done: Done | None


class Sizes:
    """How large the entries of costates can be by now that move in their own memory, without their being read.

    By the triangle inequality, tick by tick; this holds while nobody else writes to them, as their versions tell.

    Attributes:
        lent: Whether somebody may hold the costates, so that the next tick has to take other memory.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int, float]] = {}
        self.lent = False

    def of(self, slot: int, omega: Tensor) -> float:
        """A bound on the size of every entry."""
        tensor, version, size = self._known.get(slot, (None, 0, 0.0))
        if tensor is not omega or version != omega._version:
            size = torch.linalg.vector_norm(omega).item()
        return size

    def taken(self, omega: list[Omega]) -> list[Omega]:
        """Costates that have been made, as plain tensors again; what bounds them is remembered."""
        for slot, w in enumerate(omega):
            if isinstance(w, Gathered):
                self._known[slot] = w.omega, w.omega._version, w.bound()
        self.lent = False
        return [w.omega if isinstance(w, Gathered) else w for w in omega]


def costate(
    omega: list[Omega], grads: list[Tensor | Outer | None], decay: float, gain: float, sizes: Sizes
) -> list[Omega]:
    """ω⁺ = decay·ω + gain·g, rounded as PyTorch's momentum buffer is; `decay·ω` where g is missing.

    Of one large layer it is made when the tick is accepted, in ω's own memory, and rounded once.
    """
    if decay == 0.0 and gain == 1.0:
        return [torch.zeros_like(dense(w)) if g is None else _plain(g) for w, g in zip(omega, grads, strict=True)]
    new: list[Omega] = list(omega)
    beside = []
    for slot, (w, g) in enumerate(zip(omega, grads, strict=True)):
        if isinstance(g, Outer) and g.single and isinstance(w, Tensor) and w.dtype is g.x.dtype:
            new[slot] = Gathered(w.clone() if sizes.lent else w, g, decay, gain, sizes.of(slot, w))
        else:
            beside.append(slot)
    if beside:
        moved = foreach_mul([dense(omega[slot]) for slot in beside], decay)
        plain = [(w, g) for w, slot in zip(moved, beside, strict=True) if isinstance(g := grads[slot], Tensor)]
        if plain:
            foreach_add_([w for w, _ in plain], [g for _, g in plain], alpha=gain)
        for w, slot in zip(moved, beside, strict=True):
            g = grads[slot]
            if isinstance(g, Outer):
                g.add_to_(w, gain)
            new[slot] = w
    return new


def _plain(grad: Tensor | Outer) -> Tensor | Outer:
    """The gradient of an embedding may be sparse; a costate is not."""
    return grad.to_dense() if isinstance(grad, Tensor) and grad.is_sparse else grad


def add_at(total: list[Tensor | Outer | None], slots: list[int], grads: Sequence[Tensor | Outer]) -> None:
    """Sum gradients by slot; tied weights, which are never stacked, get several."""
    for slot, grad in zip(slots, grads, strict=True):
        before = total[slot]
        total[slot] = grad if before is None else dense(before) + dense(grad)
