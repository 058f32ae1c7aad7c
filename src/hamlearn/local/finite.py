"""What is not finite: found before it is taken, and named."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.errors import NonFiniteError
from hamlearn.local.outer import Outer, dense
from hamlearn.local.proposal import Omega, Proposal

_LARGE = 1 << 14


def is_finite(proposal: Proposal, omega: list[Omega]) -> bool:
    """Whether loss, z and ω of a tick are all finite."""
    small = list(proposal.z)
    if proposal.loss is not None:
        small.append(proposal.loss)
    for w in omega:
        if isinstance(w, Outer):
            if not w.is_finite():
                return False
        elif w.numel() < _LARGE:
            small.append(w)
        # A sum reads a large tensor once and writes nothing; where it overflows, look closer.
        elif not math.isfinite(w.sum().item()) and not _tree.all_finite([w]):
            return False
    return _tree.all_finite(small)


def check_input(u: Any, policy: str) -> bool:
    """Whether an input is finite; raises where `policy` says so.

    A sample that is not would poison nodes for as long as it is in flight, so it is stopped at the entrance.
    """
    tensors = [x for x in _tree.flatten(u)[0] if isinstance(x, Tensor) and x.is_floating_point()]
    if all(math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all()) for x in tensors):
        return True
    if policy == "raise":
        raise NonFiniteError(
            "the input u holds infinity or NaN: this sample was not taken. Mend it, or pass on_nonfinite='skip'"
        )
    return False


def nonfinite_message(proposal: Proposal, omega: list[Omega], t: float, aligned: bool) -> str:
    """Says what is not finite, and what to do."""
    if proposal.loss is not None and not bool(proposal.loss.isfinite()):
        what = f"the loss is {proposal.loss.item()}"
    elif all(bool(dense(w).isfinite().all()) for w in omega):
        what = "a node's costate z is not finite"
    else:
        what = "the costate omega of the weights is not finite"
    remedy = "; reset() drops the samples in flight" if aligned else ""
    return (
        f"{what} at t={t:g}: the last good state is kept. Lower beta or tau, raise eta, look at the samples, or "
        f"pass on_nonfinite='skip'{remedy}"
    )
