"""Memory that the costates of large weights take in turns."""

from __future__ import annotations

import torch

TIMES = 6
"""How much of the size of a weight is kept: gradients, costates, and gaps between them."""
MOST = 31 << 20
"""Bytes: glibc takes no notice of larger blocks, which it asks the system for each time."""
_kept = 0


def keep_pages(size: int) -> None:
    """Have the C library keep freed blocks of up to `size` bytes, instead of giving them back to the system.

    Where nothing of ω is left after a step, the new gradient takes its place, and is there before the old one
    goes: the blocks of both wander through memory, which glibc gives back and asks for again at every step. Pages
    that come from the system are cleared first, and that takes longer than all else in a step of SGD. How much
    glibc keeps depends on the largest block that it has ever given back: this is one that nobody has written to.

    Args:
        size: Of the largest weight.
    """
    global _kept
    wanted = min(TIMES * size, MOST)
    if wanted > _kept:
        _kept = wanted
        torch.empty(wanted, dtype=torch.uint8)
