"""What one tick proposes, and how ω takes it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn._torch_private import foreach_add_, foreach_mul
from hamlearn.local.outer import Outer, dense
from hamlearn.state import Sample

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


def costate(omega: list[Omega], grads: list[Tensor | Outer | None], decay: float, gain: float) -> list[Omega]:
    """ω⁺ = decay·ω + gain·g, rounded as PyTorch's momentum buffer is; `decay·ω` where g is missing."""
    if decay == 0.0 and gain == 1.0:
        return [torch.zeros_like(dense(w)) if g is None else _plain(g) for w, g in zip(omega, grads, strict=True)]
    new = list(foreach_mul([dense(w) for w in omega], decay))
    moved = [(w, g) for w, g in zip(new, grads, strict=True) if isinstance(g, Tensor)]
    if moved:
        foreach_add_([w for w, _ in moved], [g for _, g in moved], alpha=gain)
    for w, g in zip(new, grads, strict=True):
        if isinstance(g, Outer):
            g.add_to_(w, gain)
    return list(new)


def _plain(grad: Tensor | Outer) -> Tensor | Outer:
    """The gradient of an embedding may be sparse; a costate is not."""
    return grad.to_dense() if isinstance(grad, Tensor) and grad.is_sparse else grad


def add_at(total: list[Tensor | Outer | None], slots: list[int], grads: Sequence[Tensor | Outer]) -> None:
    """Sum gradients by slot; tied weights, which are never stacked, get several."""
    for slot, grad in zip(slots, grads, strict=True):
        before = total[slot]
        both = isinstance(before, Tensor) and isinstance(grad, Tensor)
        total[slot] = before + grad if both else grad  # type: ignore[operator]
