"""Members that rest, skip or leave within a loop, while the others continue.

A member that does not take a step keeps all that it carries, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

OnTrouble = Literal["leave", "skip"]
"""At a step that goes wrong a member leaves the loop, or skips the sample where nothing but numbers is wrong."""
RESTED, TAKEN, SKIPPED, LEFT = range(4)
"""What became of a step of a member: it rested, took the sample, skipped it, or left because of it."""


@dataclass(frozen=True)
class MemberControl:
    """What each member of a loop does.

    Attributes:
        active: Whether a member has a sample at a step, laid out as all that members have for themselves.
        on_trouble: What it does at a step that goes wrong.
    """

    active: Tensor
    on_trouble: OnTrouble


def controlled(
    new: Sequence[Tensor],
    old: Sequence[Tensor],
    control: Sequence[Tensor],
    active: Tensor,
    begins: Tensor,
    wrong: Sequence[Tensor],
    losses: Sequence[Tensor],
    faults: Sequence[Tensor],
    phi: Tensor,
    on_trouble: OnTrouble,
) -> tuple[list[Tensor], Tensor]:
    """What a member carries after a step, then what the control carries, and what became of the step.

    Args:
        new: What it would carry.
        old: What it carried.
        control: Whether it has left; whether it begins a sequence again because it skipped the first sample.
        active: Whether it has a sample.
        begins: Whether the sample begins a sequence.
        wrong: Counts of entries that are not finite.
        losses: Losses to look at.
        faults: Counts of indices out of range.
        phi: Scale of the loss; where it is 0 the target may be a stand-in, and nothing is skipped because of it.
        on_trouble: What it does at a step that goes wrong.
    """
    left, again = control
    here = active & ~left
    bad, faulty = torch.zeros_like(left), torch.zeros_like(left)
    for count in wrong:
        bad = bad | (count != 0)
    for loss in losses:
        bad = bad | ~loss.isfinite()
    for count in faults:
        faulty = faulty | (count != 0)
    leaves = bad | faulty
    if on_trouble == "skip":
        leaves = faulty | (bad & (phi == 0))
    skips = here & bad & ~leaves
    leaves = here & leaves
    takes = here & ~skips & ~leaves
    carried = [torch.where(takes, a, b) for a, b in zip(new, old, strict=True)]
    carried += [left | leaves, torch.where(here, skips & begins, again)]
    verdict = takes.long() * TAKEN + skips.long() * SKIPPED + leaves.long() * LEFT
    return carried, verdict
