"""What is not finite: found before it is taken, and named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import finite
from hamlearn._base.finite import Part, what_is_not
from hamlearn._base.torch_private import foreach_norm
from hamlearn.errors import NonFiniteError
from hamlearn.orders.local.outer import Outer, dense
from hamlearn.orders.local.proposal import Omega, Proposal


def is_finite(proposal: Proposal) -> bool:
    """Whether loss, h and z of a tick are all finite."""
    values = [*proposal.h, *proposal.z]
    if proposal.loss is not None:
        values.append(proposal.loss)
    return finite.all_finite(values)


def is_sound(proposal: Proposal) -> bool:
    """Whether loss and h are finite, which a sample may spoil by itself; z comes from samples before it."""
    return finite.all_finite(proposal.h if proposal.loss is None else [*proposal.h, proposal.loss])


def reach(omega: list[Omega]) -> float:
    """A bound on the size of every entry of ω; infinite or NaN where an entry is, or where none can be told."""
    tensors = [w for w in omega if isinstance(w, Tensor)]
    norms = foreach_norm(tensors) if tensors else ()
    bound = torch.stack(norms).sum().item() if len(norms) > 2 else sum(norm.item() for norm in norms)
    return bound + sum(w.bound() for w in omega if isinstance(w, Outer))


def all_finite(omega: list[Omega]) -> bool:
    """Whether every entry of ω is finite."""
    return finite.all_finite([dense(w) for w in omega])


def smallest_risk(theta: list[Tensor]) -> float:
    """A finite weight that moves by less than this stays finite, whatever its size: the sum is rounded down.

    Example:
        >>> import torch
        >>> largest = torch.tensor([torch.finfo(torch.float32).max])
        >>> bool((largest + smallest_risk([largest])).isfinite())
        True
    """
    limits = [torch.finfo(w.dtype) for w in theta]
    return min(limit.max * limit.eps / 8 for limit in limits)


def check_input(u: Any, policy: str) -> bool:
    """Whether an input is finite; raises where `policy` says so.

    A sample that is not would poison nodes for as long as it is in flight, so it is stopped at the entrance.
    """
    if finite.is_finite(u):
        return True
    if policy == "raise":
        raise NonFiniteError(
            "the input u holds infinity or NaN: this sample was not taken. Mend it, or pass on_nonfinite='skip'"
        )
    return False


def nonfinite_message(proposal: Proposal, spoilt: bool, omega: list[Omega], t: float) -> str:
    """Says what is not finite, and what to do."""

    def parts() -> Iterator[Part]:
        if proposal.loss is not None:
            yield f"the loss is {proposal.loss.item()}", [proposal.loss]
        yield "a node's state h is not finite", proposal.h
        yield "a node's costate z is not finite", proposal.z
        if not spoilt:
            yield "the costate omega of the weights is not finite", [dense(w) for w in omega]

    rest = "a buffer, such as a running statistic, is not finite" if spoilt else "the weights would not be finite"
    what = what_is_not(parts(), rest)
    return (
        f"{what} at t={t:g}: the last good state is kept. Lower beta or tau, raise eta, look at the samples, or "
        "pass on_nonfinite='skip'. Where a sample before this one is the cause, reset() drops what is under way"
    )
