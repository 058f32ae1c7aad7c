"""Recording a CUDA graph while other threads of the process continue."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Record what the block launches into `graph`.

    A capture is lost when anything is freed on the GPU meanwhile. So the garbage collector waits: it may hold the
    graph of a learner that was dropped earlier. Other threads may allocate and free as they like.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()
