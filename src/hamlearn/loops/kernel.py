"""A whole loop over time in CUDA: one kernel, in which a block of threads takes all steps of one network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from hamlearn.loops.kernel_text import MEETING, Given, Text
from hamlearn.loops.levels import levels, split_folds
from hamlearn.loops.memory_planner import Piece, aligned, place
from hamlearn.loops.multi_block import EXCHANGED, divide, divisible
from hamlearn.loops.nests import Nest
from hamlearn.loops.program import PREFIX, Kind, Translation
from hamlearn.loops.threads import sizes_of
from hamlearn.loops.values import UnsupportedError
from hamlearn.loops.writer import Writer

SHARED = 227 * 1024
"""Bytes of shared memory that a block may have on Hopper."""


@dataclass(frozen=True)
class Kernel:
    """CUDA source of a loop over steps, and what a launch of it needs.

    Attributes:
        source: Defines the kernel `run(given, steps, groups, scratch)`, where `given` is a structure of pointers
            to carries, samples, constants and results, in this order. What a compiler for CUDA defines itself, or
            a stand-in for it, has to stand in front.
        threads: Threads of a block.
        blocks: Blocks that work together on one network; all must run at the same time if there are several.
        shared: Bytes of dynamic shared memory.
        common: Bytes of global memory that all blocks share, zeros at the start.
        scratch: Bytes of global memory for each block, behind that.
        lanes: Number of members in a group; each has a block.
        work: Terms and elements that a block computes in a step.
        cut: Terms and elements of a step that are shared out over the blocks.
        alone: Whether all that is carried is in shared memory.
        constants: Tensors that the graph itself holds, behind those given as constants.
        results: Shape and dtype of each result of a step.
    """

    source: str
    threads: int
    blocks: int
    shared: int
    common: int
    scratch: int
    lanes: int
    work: int
    cut: int
    alone: bool
    constants: list[Tensor]
    results: list[tuple[tuple[int, ...], torch.dtype]]


def translate_to_cuda(
    graph: fx.GraphModule,
    kinds: Sequence[Kind],
    laned: Sequence[bool],
    lanes: int = 1,
    threads: int = 256,
    shared: int = SHARED,
    blocks: int = 1,
) -> Kernel:
    """The kernel whose step is `graph`.

    Args:
        graph: The step, as `translate` takes it.
        kinds: What each input of the graph is.
        laned: Which inputs each member of a population has for itself.
        lanes: Number of members in a group.
        threads: Threads of a block, a power of two.
        shared: Bytes of shared memory that a block may have.
        blocks: Blocks that share the work on a single network.

    Raises:
        UnsupportedError: If an operation has no loops.
    """
    try:
        return _InCuda(graph, list(kinds), list(laned), lanes, threads, shared, blocks).kernel()
    except RecursionError as error:
        raise UnsupportedError("the step is too long a chain of operations") from error


class _InCuda(Translation):
    """Members are not an axis of the nests here: each block has one member, at a place of its own."""

    def __init__(
        self,
        graph: fx.GraphModule,
        kinds: list[Kind],
        laned: list[bool],
        lanes: int,
        threads: int,
        shared: int,
        blocks: int,
    ) -> None:
        super().__init__(graph, kinds, [False] * len(kinds), Writer(on_cpu=False))
        self.own_lanes, self.width, self.threads, self.limit = laned, lanes, threads, shared
        self.blocks = blocks

    def kernel(self) -> Kernel:
        results = [(shape, dtype) for shape, dtype, _ in self.walk()]
        given, nests, cuts = self._given(results), self.writer.nests, {}
        if self.blocks > 1:
            if self.width > 1:
                raise UnsupportedError("several blocks for each member of a population have no loops")
            matrices = divisible(self.writer, nests)
            nests = divide(self.writer, nests, matrices, self.blocks)
            for name, rows in matrices.items():
                cuts[name] = -(-rows // self.blocks) * (math.prod(self.writer.shapes[name]) // rows)
        nests = split_folds(self.writer, nests, self.threads)
        order = levels(nests)
        written = {name for level in order for job in level for name in job.written}
        others = [g for g in given if g.name[0] in (PREFIX["carry"], PREFIX["constant"])]
        places = place(
            order,
            [_held(name, dtype.itemsize, cuts.get(name, count)) for name, dtype, count in self.writer.memory],
            [_held(g.name, g.dtype.itemsize, g.count) for g in given if g.name[0] == PREFIX["sample"]],
            [_held(g.name, g.dtype.itemsize, cuts.get(g.name, g.count)) for g in others],
            self.threads,
            self.limit,
        )
        outside = [g for g in others if g.name in written and g.name not in places.shared]
        if self.width > 1 and any(g.name[0] == "c" and g.name in written and not g.laned for g in given):
            raise UnsupportedError("a carry that all members share and that changes has no loops")
        if self.blocks > 1 and any(g.name not in cuts for g in outside):
            raise UnsupportedError(f"{outside[0].count:,} numbers that every block needs have no place")
        exchange = self._exchange()
        text = Text(order, given, places, cuts, exchange, self.writer.types, self.threads, self.width, self.blocks)
        common = MEETING + 2 * sum(exchange.values()) if self.blocks > 1 else 0
        return Kernel(
            source=text.source(written),
            threads=self.threads,
            blocks=self.blocks,
            shared=places.shared_size,
            common=common,
            scratch=places.scratch_size,
            lanes=self.width,
            work=_work(nests),
            cut=self.blocks * _work([nest for nest in nests if nest.share is not None]),
            alone=not outside,
            constants=self.constants,
            results=results,
        )

    def _exchange(self) -> dict[str, int]:
        """Bytes of each vector that goes from block to block."""
        shapes, types = self.writer.shapes, self.writer.types
        names = [name for name in shapes if name[0] == EXCHANGED]
        return {name: aligned(math.prod(shapes[name]) * types[name].itemsize) for name in names}

    def _given(self, results: list[tuple[tuple[int, ...], torch.dtype]]) -> list[Given]:
        laned = [*self.own_lanes, *[False] * len(self.constants)]
        listed = [
            Given(name, value.dtype, value.numel, own and self.width > 1)
            for (name, value, _), own in zip(self.inputs, laned, strict=True)
        ]
        ordered = [given for letter in PREFIX.values() for given in listed if given.name[0] == letter]
        return [
            *ordered,
            *(Given(f"y{k}", dtype, math.prod(shape), self.width > 1) for k, (shape, dtype) in enumerate(results)),
        ]


def _held(name: str, size: int, count: int) -> Piece:
    return Piece(name, size * count, count)


def _work(nests: Sequence[Nest]) -> int:
    """Terms and elements that one block computes in a step."""
    return sum(math.prod((*elements, *terms)) for elements, terms in map(sizes_of, nests))
