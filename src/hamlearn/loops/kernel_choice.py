"""Which kernel a step gets: how many threads a block has, and how many blocks a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from hamlearn.loops.kernel import Kernel, translate_to_cuda
from hamlearn.loops.program import Kind
from hamlearn.loops.values import UnsupportedError

SHARE = 1024
"""Terms and elements of a step that one of several blocks has at least."""
LARGEST = 128
"""Blocks of one network at most."""
ENOUGH = 1 << 15
"""Terms and elements of a step up to which one block is faster than several that have to wait for each other."""
MOST = 1 << 18
"""Terms and elements of a step up to which a block is faster than a launch of many blocks for each operation."""


def threads_for(work: int, members: int, processors: int) -> int:
    """Threads of a block.

    One network has a processor of the GPU for itself, and as many threads as its elements keep busy. Where several
    members share a processor, they also hide each other's waiting, and fewer threads cost fewer barriers.

    Args:
        work: Terms and elements of a step.
        members: Blocks that run at the same time.
        processors: Multiprocessors of the GPU.
    """
    alone = 256 if work <= 8_192 else 512 if work <= 65_536 else 1024
    shared = -(-members // processors)
    return alone if shared == 1 else max(64, alone // (2 if shared == 2 else 4))


def choose(
    graph: fx.GraphModule,
    kinds: Sequence[Kind],
    laned: Sequence[bool],
    lanes: int,
    members: int,
    shared: int,
    processors: int,
) -> Kernel:
    """One block for each network whose weights fit into its shared memory, and several for a larger one.

    Args:
        graph: The step, as `translate` takes it.
        kinds: What each input of the graph is.
        laned: Which inputs each member of a population has for itself.
        lanes: Number of members in a group.
        members: Number of members in all.
        shared: Bytes of shared memory that a block may have.
        processors: Multiprocessors of the GPU.

    Raises:
        UnsupportedError: If an operation has no loops, or the step is too large.
    """
    single = translate_to_cuda(graph, kinds, laned, lanes, shared=shared)
    if lanes == 1 and (single.work > ENOUGH or not single.alone):
        several = _several(graph, kinds, laned, shared, processors)
        if several is not None:
            return several
    if single.work > MOST:
        raise UnsupportedError(
            f"a step of {single.work:,} terms and elements, not all of them rows of matrices, is too large for a "
            "block of threads"
        )
    threads = threads_for(single.work, members, processors)
    return single if threads == single.threads else translate_to_cuda(graph, kinds, laned, lanes, threads, shared)


def _several(
    graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], shared: int, processors: int
) -> Kernel | None:
    """A kernel of several blocks, where most of a step can be shared out over them."""
    try:
        cut = translate_to_cuda(graph, kinds, laned, shared=shared, blocks=2).cut
    except UnsupportedError:
        # What all blocks need may have no place in two of them, and none in more.
        return None
    blocks = 1
    while 2 * blocks <= min(LARGEST, processors) and 2 * blocks * SHARE <= cut:
        blocks *= 2
    if blocks == 1:
        return None
    found = translate_to_cuda(graph, kinds, laned, shared=shared, blocks=blocks)
    if found.work > MOST or not found.alone:
        return None
    threads = threads_for(found.work, 1, processors)
    return (
        found if threads == found.threads else translate_to_cuda(graph, kinds, laned, 1, threads, shared, blocks)
    )
