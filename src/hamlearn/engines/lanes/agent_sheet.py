"""Samples of many members side by side: one row per step, one column per lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.engines.lanes.lanes import Layout
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block

Form = tuple[Any, ...]


def form_of(block: Block) -> Form:
    """What the samples of a block have in common, and a recorded step depends on."""
    assert block.u is not None
    described = [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in (*block.u, *block.target)]
    return (len(block.u), block.u_spec, block.target_spec, *described)


def fits(block: Block, example: Block) -> bool:
    """Whether samples of both can stand side by side; targets may be missing on either side."""
    if block.u is None or example.u is None or block.u_spec != example.u_spec:
        return False
    pairs = [(block.u, example.u)]
    if block.target and example.target:
        if block.target_spec != example.target_spec:
            return False
        pairs.append((block.target, example.target))
    for mine, others in pairs:
        if len(mine) != len(others):
            return False
        for a, b in zip(mine, others, strict=True):
            if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype or a.device != b.device:
                return False
    return True


@dataclass
class Sheet:
    """The samples of all lanes for some steps.

    Attributes:
        count: Number of steps.
        blocks: The samples of each lane; `None` where a lane rests.
        counts: How many samples each lane has.
        together: The packed inputs and targets, as the engine takes them.
        known: Whether there is a target, by step and lane; `None` where all have one, or none has.
        tau: τ by step and lane, 0 where a sample has none of its own, below 0 where it is no time step; `None`
            where no sample has its own.
        boundary: Whether a sample ends its sequence, by step and lane; `None` where none does.
    """

    count: int
    blocks: list[Block | None]
    counts: np.ndarray
    together: Block
    known: np.ndarray | None
    tau: np.ndarray | None
    boundary: np.ndarray | None

    @classmethod
    def of(cls, blocks: Sequence[Block | None], count: int, layout: Layout) -> Sheet:
        """Blocks side by side; those that are too long are cut, and what is missing is filled with stand-ins."""
        kept = [None if block is None else block.part(0, min(count, block.count)) for block in blocks]
        there = [(lane, block) for lane, block in enumerate(kept) if block is not None]
        example = next((block for _, block in there if block.target), there[0][1])
        u = [_side_by_side(kept, count, layout, "u", place) for place in range(len(example.u or []))]
        target = [_side_by_side(kept, count, layout, "target", place) for place in range(len(example.target))]
        counts = np.zeros(len(kept), dtype=np.int64)
        known = tau = boundary = None
        for lane, block in there:
            counts[lane] = block.count
            if example.target and (block.known is not None or not block.target):
                known = np.ones((count, len(kept)), dtype=bool) if known is None else known
                known[: block.count, lane] = block.known if block.known is not None else False
            if block.tau is not None:
                tau = np.zeros((count, len(kept))) if tau is None else tau
                tau[: block.count, lane] = [_as_number(one) for one in block.tau]
            if block.boundary is not None:
                boundary = np.zeros((count, len(kept)), dtype=bool) if boundary is None else boundary
                boundary[: block.count, lane] = block.boundary
        together = Block(count, u, example.u_spec, target, example.target_spec)
        return cls(count, kept, counts, together, known, tau, boundary)

    def learns(self) -> np.ndarray:
        """Whether there is a target, by step and lane."""
        if self.known is not None:
            return self.known
        return np.full((self.count, len(self.blocks)), bool(self.together.target))

    def learned(self, taken: np.ndarray | None) -> np.ndarray | int:
        """How many targets each lane has met; `taken`: in these steps only."""
        if taken is None and self.known is None:
            return self.count * bool(self.together.target)
        return (self.learns() if taken is None else self.learns() & taken).sum(0)

    def begins(self, fresh: np.ndarray, layout: Layout) -> Tensor:
        """Whether a sample begins a sequence, as the engine takes it, given whether the first one does."""
        assert self.together.u is not None
        first = layout.fold(torch.from_numpy(fresh)[None], 1)
        if self.boundary is None:
            device = self.together.u[0].device
            rows = torch.zeros(self.count, *first.shape[1:], dtype=torch.bool, device=device)
            rows[:1] = first.to(device)
            return rows
        return torch.cat([first, layout.fold(torch.from_numpy(self.boundary[:-1]), 1)])

    def sample(self, index: int, lane: int) -> Sample:
        """One of the samples."""
        block = self.blocks[lane]
        assert block is not None
        return block.sample(index)

    def head(self, stop: int) -> Sheet:
        """The first `stop` steps."""
        cut = lambda rows: None if rows is None else rows[:stop]  # noqa: E731
        blocks = [None if b is None else b.part(0, min(stop, b.count)) for b in self.blocks]
        counts, together = np.minimum(self.counts, stop), self.together.part(0, stop)
        return Sheet(stop, blocks, counts, together, cut(self.known), cut(self.tau), cut(self.boundary))


def _as_number(tau: Any) -> float:
    if tau is None:
        return 0.0
    # What is no plain number above 0 is left to the eager engine, which takes it or says what is wrong.
    return tau if type(tau) is float and 0.0 < tau < float("inf") else -1.0


@torch.no_grad()
def _side_by_side(blocks: Sequence[Block | None], count: int, layout: Layout, part: str, place: int) -> Tensor:
    found = [getattr(block, part) if block is not None else None for block in blocks]
    example = next(leaves[place] for leaves in found if leaves)
    nothing = torch.zeros_like(example[:1]).expand(count, *example.shape[1:])
    rows = []
    for block, leaves in zip(blocks, found, strict=True):
        # Nobody reads a stand-in's values, and zeros are within range of any index.
        row = leaves[place] if leaves else nothing
        if part == "target" and block is not None and block.known is not None:
            row = _without_bad_stand_ins(row, torch.tensor(block.known, device=row.device))
        rows.append(row if len(row) == count else torch.cat([row, nothing[len(row) :]]))
    return layout.fold(torch.stack(rows, 1), 1)


def _without_bad_stand_ins(target: Tensor, known: Tensor) -> Tensor:
    """Stand-ins for missing targets, taken from a sample that is in order: 0 times infinity is not a number."""
    good = known & target.isfinite().flatten(1).all(1) if target.dim() > 1 else known & target.isfinite()
    example = target[good.int().argmax()] if bool(good.any()) else torch.zeros_like(target[0])
    return torch.where(known.view(-1, *[1] * (target.dim() - 1)), target, example)
