"""What all members take next: from one stream that they share, or from one each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hamlearn.engine.lanes.batch import LaneBatch
from hamlearn.engine.lanes.lanes import Layout
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Progress, Reader

BYTES = 1 << 27
"""Bytes of samples that a block may have, unless a chunk is given."""


class LaneReader:
    """Reads blocks for all members, as `Reader` does for one learner.

    Args:
        readers: The reader of a shared stream, or that of each member.
        members: Number of members.
        layout: Where their lanes lie.
        own: Whether each member has a stream of its own.

    Attributes:
        aside: Why members were frozen in this run, by their numbers.
        ended: Members whose streams have ended.
        limit: Bytes of samples that a block of all members may have.
    """

    def __init__(self, readers: Sequence[Reader], members: int, layout: Layout, own: bool) -> None:
        self.readers, self.members, self.layout, self.own = readers, members, layout, own
        self.aside: dict[int, Exception] = {}
        self.ended: set[int] = set()
        self.limit: float = math.inf

    @property
    def progress(self) -> list[Progress]:
        """How far the reading of each stream has come."""
        return [reader.progress for reader in self.readers]

    def advance(self, before: Sequence[Progress], batch: LaneBatch, steps: int) -> None:
        """Set the progress to so many steps of a batch that began at `before`."""
        blocks = batch.blocks if self.own else [batch.example]
        for reader, progress, block in zip(self.readers, before, blocks, strict=True):
            if block is not None:
                taken = min(steps, block.count)
                reader.progress = progress.after(taken, block.boundary and block.boundary[:taken])

    def open_blocks(self, streams: Sequence[Iterable[Sample]], resume: bool) -> dict[int, int]:
        """Begin to read the streams; all members take part again, but for those whose own cannot be opened."""
        self.aside, self.ended, found = {}, set(), {}
        for number, (reader, stream) in enumerate(zip(self.readers, streams, strict=True)):
            with self.freezing(number):
                found[number] = reader.open_blocks(stream, resume)
        return found

    def check_turn(self, turns: dict[int, int]) -> None:
        """Raise if another run has begun since."""
        for number, turn in turns.items():
            self.readers[number].check_turn(turn)

    def close(self, turns: dict[int, int]) -> None:
        """End the run that began at these turns."""
        for number, turn in turns.items():
            self.readers[number].close(turn)

    def peek(self, size: int) -> LaneBatch | None:
        """The samples to come, at most `size` of each member; `None` at the end."""
        if not self.own:
            block = self.readers[0].peek(size)
            if block is None:
                return None
            blocks = [None if number in self.aside else block for number in range(self.members)]
            return LaneBatch(blocks, self.layout, False)
        found = self._blocks(size)
        if not found:
            return None
        # A block ends for all where the first one of them ends.
        count = min(block.count for block in found.values())
        parts = [found[n].part(0, count) if n in found else None for n in range(self.members)]
        return LaneBatch(parts, self.layout, True)

    def counted(self, step: Callable[[Any], Any], row: Any) -> Any:
        """Take the samples of a step by `step`, which counts them itself if members have their own streams."""
        return step(row) if self.own else self.readers[0].counted(step, row)

    def end(self, waiting: int) -> None:
        """Raise if a shared stream has ended within a sequence."""
        if not self.own:
            self.readers[0].end(waiting)

    def freeze(self, number: int, error: Exception) -> None:
        """Let a member rest from now on, because of an error."""
        self.aside[number] = error
        text = f"member {number} of {self.members} is frozen, and the others continue: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    @contextmanager
    def freezing(self, number: int) -> Iterator[None]:
        """Within, an error of a member's own stream freezes the member."""
        try:
            yield
        except Exception as error:
            if not self.own:
                raise
            self.freeze(number, error)

    def _blocks(self, size: int) -> dict[int, Block]:
        found: dict[int, Block] = {}
        for number, reader in enumerate(self.readers):
            if number in self.aside or number in self.ended:
                continue
            with self.freezing(number):
                block = reader.peek(size)
                if block is None:
                    self.ended.add(number)
                    reader.end(0)
                    continue
                if not found and block.u is not None:
                    # As many steps of all members as `limit` allows, by the samples of the first one.
                    each = sum(leaf[0].nbytes for leaf in (*block.u, *block.target))
                    size = int(min(size, max(1, self.limit // (self.members * max(each, 1)))))
                found[number] = block
        return found
