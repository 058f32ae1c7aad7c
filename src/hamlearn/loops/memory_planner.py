"""Placement of a kernel's arrays: in shared memory until it is full, then in global memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamlearn.loops.levels import FusedNest

ALIGNMENT = 16
AHEAD = 8
"""Elements of a sample that a thread may hold in registers while it waits for the next step."""


@dataclass(frozen=True)
class Piece:
    """A piece of memory that a step touches.

    Attributes:
        name: In the nests.
        size: Bytes.
        count: Elements.
    """

    name: str
    size: int
    count: int


@dataclass
class Placement:
    """Where each piece of memory is.

    Attributes:
        shared: Byte in shared memory at which a piece begins; a sample has space for two steps there.
        scratch: Byte in the block's own global memory at which a piece begins.
        shared_size: Bytes of shared memory in all.
        scratch_size: Bytes of global memory in all, beside the tensors that are given.
    """

    shared: dict[str, int]
    scratch: dict[str, int]
    shared_size: int = 0
    scratch_size: int = 0

    def add(self, name: str, size: int, limit: int) -> bool:
        """Put a piece behind all others in shared memory if there is space."""
        if self.shared_size + size > limit:
            return False
        self.shared[name] = self.shared_size
        self.shared_size += aligned(size)
        return True


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(
    levels: Sequence[Sequence[FusedNest]],
    own: Sequence[Piece],
    samples: Sequence[Piece],
    others: Sequence[Piece],
    threads: int,
    limit: int,
) -> Placement:
    """Share out the memory of a block.

    What a step needs for itself comes first, since all of it is touched in every step; pieces that are never
    needed at the same time may lie in the same place. Then come samples, twice, so that one can be fetched while
    the other is worked on; then carries and constants, the small ones first.

    Args:
        levels: The nests of a step.
        own: Memory that only lasts for a step.
        samples: Memory that is read again in each step.
        others: Carries and constants.
        threads: Threads of a block.
        limit: Bytes of shared memory that a block may have.
    """
    spans = _spans(levels)
    inside = sorted((piece for piece in own if piece.name in spans), key=lambda piece: -piece.size)
    outside: list[Piece] = []
    offsets, total = _packed(inside, spans)
    while total > limit // 2:
        outside.append(inside.pop(0))
        offsets, total = _packed(inside, spans)
    places = Placement(offsets, {}, total)
    for piece in outside:
        places.scratch[piece.name] = places.scratch_size
        places.scratch_size += aligned(piece.size)
    for piece in samples:
        if piece.count <= AHEAD * threads and piece.size <= limit // 8:
            places.add(piece.name, 2 * aligned(piece.size), limit)
    for piece in sorted(others, key=lambda piece: piece.size):
        places.add(piece.name, piece.size, limit)
    return places


def _spans(levels: Sequence[Sequence[FusedNest]]) -> dict[str, tuple[int, int]]:
    """The first and the last level that touches each piece."""
    spans: dict[str, tuple[int, int]] = {}
    for number, level in enumerate(levels):
        for job in level:
            for name in job.touched:
                spans[name] = (spans.get(name, (number, 0))[0], number)
    return spans


def _packed(pieces: Sequence[Piece], spans: dict[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Each piece, the largest first, at the lowest place that is free as long as it is needed."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, tuple[int, int]]] = []
    for piece in pieces:
        first, last = spans[piece.name]
        taken = sorted((a, b) for a, b, (begin, end) in placed if begin <= last and first <= end)
        offset = 0
        for a, b in taken:
            if offset + aligned(piece.size) <= a:
                break
            offset = max(offset, b)
        offsets[piece.name] = offset
        placed.append((offset, offset + aligned(piece.size), (first, last)))
    return offsets, max((end for _, end, _ in placed), default=0)
