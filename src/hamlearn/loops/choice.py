"""Which kernel a step gets: how many threads a block has, and how many blocks a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from hamlearn.loops.kernel import Kernel, translate_to_cuda
from hamlearn.loops.program import Kind
from hamlearn.loops.values import UnsupportedError

SHARE = 2048
"""Terms and elements of a step that one of several blocks has at least."""
LARGEST = 128
"""Blocks of one network at most."""


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
    single, reason = None, None
    try:
        single = translate_to_cuda(graph, kinds, laned, lanes, shared=shared)
    except UnsupportedError as error:
        reason = error
    if lanes == 1 and (single is None or not single.alone):
        blocks = LARGEST
        while blocks > 1:
            try:
                found = translate_to_cuda(graph, kinds, laned, 1, 512, shared, blocks)
            except UnsupportedError as error:
                reason = reason or error
                break
            if found.cut >= SHARE * blocks and blocks <= processors:
                return found
            blocks //= 2
    if single is None:
        assert reason is not None
        raise reason
    threads = threads_for(single.work, members, processors)
    return single if threads == single.threads else translate_to_cuda(graph, kinds, laned, lanes, threads, shared)
