"""Reading a stream in blocks, as an engine does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hamlearn.streams.blocks import Block, stacked


def blocks_of(stream: Any, n: int) -> Iterator[Block]:
    """A new pass over a stream in blocks of at most `n` samples."""
    iter(stream)
    while (read := stream.block(n)) is not None:
        yield from [read] if isinstance(read, Block) else stacked(read)


def flat(stream: Any, n: int) -> list[Any]:
    """The samples of a new pass in blocks of at most `n`."""
    return [sample for block in blocks_of(stream, n) for sample in block.each()]
