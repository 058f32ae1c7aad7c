"""The samples of all lanes for some steps: one row per step, one column per lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.engine.lanes.lanes import Layout
from hamlearn.engine.rates_table import time_steps
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block


class LaneBatch:
    """Samples of all lanes, of one stream that they share or of one each.

    Args:
        blocks: As many samples of each lane, `None` for a lane that rests. Lanes that share a stream have the same
            block.
        layout: Where the lanes lie.
        own: Whether each lane has samples of its own.

    Attributes:
        count: Number of steps.
        active: Which lanes take part.
        example: A block with targets, if one has any.
    """

    def __init__(self, blocks: Sequence[Block | None], layout: Layout, own: bool) -> None:
        self.blocks, self.layout, self.own = blocks, layout, own
        self.active = np.array([block is not None for block in blocks])
        there = [block for block in blocks if block is not None]
        self.example = next((block for block in there if block.target), there[0])
        self.count = self.example.count

    @property
    def u(self) -> list[Tensor] | None:
        """`None` if samples of the lanes cannot be stacked."""
        example, u_form, target_form = self.example, _form(self.example.u), _form(self.example.target)
        for block in self.blocks if self.own else ():
            if block is None:
                continue
            if block.u_spec != example.u_spec or _form(block.u) != u_form:
                return None
            # A block may be without any target.
            if block.target and (block.target_spec != example.target_spec or _form(block.target) != target_form):
                return None
        return example.u

    def packed(self) -> Block:
        """The samples as the engine takes them; arbitrary values for a target that is missing."""
        example = self.example
        if not self.own:
            return example
        assert example.u is not None
        u = [self._stacked("u", place) for place in range(len(example.u))]
        target = [self._stacked("target", place) for place in range(len(example.target))]
        return Block(self.count, u, example.u_spec, target, example.target_spec)

    @cached_property
    def known(self) -> np.ndarray | None:
        """Whether there is a target, by step and lane; `None` if all samples have one, or none has."""
        if not self.example.target:
            return None
        return self._table(lambda block: block.known if block.target else [False] * block.count, True)

    @cached_property
    def tau(self) -> np.ndarray | None:
        """τ by step and lane as in `time_steps`; `None` if all are usual."""
        return self._table(lambda block: None if block.tau is None else time_steps(block.tau), 0.0)

    @cached_property
    def boundary(self) -> np.ndarray | None:
        """Whether a sample ends its sequence, by step and lane; `None` if none does."""
        return self._table(lambda block: block.boundary, False)

    @cached_property
    def learns(self) -> np.ndarray:
        """Whether a lane takes a sample with a target, by step and lane."""
        targets = self.known if self.known is not None else bool(self.example.target)
        return np.broadcast_to(self.active & targets, (self.count, len(self.blocks)))

    @cached_property
    def complete(self) -> bool:
        """Whether every lane has a target at every step."""
        return bool(self.example.target and self.known is None and self.active.all())

    def begins(self, fresh: np.ndarray, device: torch.device) -> Tensor:
        """Whether a sample begins a sequence, as the engine takes it; `fresh`: whether the first one does."""
        first = self.layout.fold(torch.from_numpy(fresh)[None], 1)
        if self.boundary is not None:
            return torch.cat([first, self.layout.fold(torch.from_numpy(self.boundary[:-1].copy()), 1)])
        # Made on the device: there are as many entries as steps times members.
        rows = torch.zeros(self.count, *first.shape[1:], dtype=torch.bool, device=device)
        rows[:1] = first.to(device)
        return rows

    def sample(self, index: int) -> Any:
        """The samples of a step: one for each lane, `None` for those that rest; or the one that all share."""
        if not self.own:
            return self.example.sample(index)
        return [self.lane_sample(index, lane) for lane in range(len(self.blocks))]

    def lane_sample(self, index: int, lane: int) -> Sample | None:
        """The sample of one lane."""
        block = self.blocks[lane]
        return None if block is None else block.sample(index)

    def part(self, start: int, stop: int) -> LaneBatch:
        """Some of the steps."""
        if start == 0 and stop == self.count:
            return self
        if self.own:
            return LaneBatch([block and block.part(start, stop) for block in self.blocks], self.layout, True)
        cut = self.example.part(start, stop)
        return LaneBatch([block and cut for block in self.blocks], self.layout, False)

    def _table(self, values: Callable[[Block], Any], usual: Any) -> np.ndarray | None:
        """One value by step and lane, `usual` for blocks without; `None` if no block has any."""
        shape = self.count, len(self.blocks)
        if not self.own:
            shared = values(self.example)
            return None if shared is None else np.broadcast_to(np.array(shared)[:, None], shape)
        found = [None if block is None else values(block) for block in self.blocks]
        if all(column is None for column in found):
            return None
        return np.stack([np.full(self.count, usual) if column is None else column for column in found], 1)

    @torch.no_grad()
    def _stacked(self, part: str, place: int) -> Tensor:
        """One leaf of the inputs or targets of all lanes; zeros, a valid index too, for what is missing."""
        nothing, rows = torch.zeros_like(getattr(self.example, part)[place]), []
        for block in self.blocks:
            leaves = None if block is None else getattr(block, part)
            row = leaves[place] if leaves else nothing
            if part == "target" and leaves and block is not None and block.known is not None:
                # Their loss is scaled by 0, and 0 times a NaN from another sample would be NaN.
                known = torch.tensor(block.known, device=row.device)
                row = row.where(known.view(-1, *[1] * (row.dim() - 1)), nothing)
            rows.append(row)
        return self.layout.fold(torch.stack(rows, 1), 1)


def _form(leaves: list[Tensor] | None) -> Any:
    return leaves and [(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves]
