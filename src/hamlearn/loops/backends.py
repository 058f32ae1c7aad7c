"""Ways to run a recorded step many times: C loops on the CPU; on a GPU one kernel, or PyTorch's own compiler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, fx

from hamlearn.loops.cuda import OnCuda
from hamlearn.loops.kernel_choice import choose
from hamlearn.loops.launch import CudaLoop, shared_limit
from hamlearn.loops.library import Loop, cached
from hamlearn.loops.program import Kind, translate
from hamlearn.loops.recording import on_device
from hamlearn.loops.values import UnsupportedError

logger = logging.getLogger("hamlearn")


class Runnable(Protocol):
    """A loop over steps."""

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]
    ) -> list[Tensor]:
        """Take `steps` steps: the carry changes in place, and the results come back, one row per step."""


class InC:
    """A loop in C, for tensors on the CPU."""

    def __init__(self, graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], lanes: int) -> None:
        program = translate(graph, kinds, laned, lanes)
        self.lanes = lanes
        if not cached(program):
            logger.warning("compiling a step into C loops: it takes a moment, and is kept for the next time")
        self.loop = Loop(program)

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]
    ) -> list[Tensor]:
        """Take `steps` steps."""
        groups = len(carry[0]) if self.lanes > 1 else 1
        return self.loop(steps, carry, samples, constants, groups)


class InOneKernel:
    """One kernel for all steps, for tensors on a GPU; each member of a population has a block of threads."""

    def __init__(
        self,
        graph: fx.GraphModule,
        kinds: Sequence[Kind],
        laned: Sequence[bool],
        lanes: int,
        device: torch.device,
    ) -> None:
        self.lanes, self.device = lanes, device
        limit, processors = shared_limit(device), torch.cuda.get_device_properties(device).multi_processor_count
        self.choose = lambda members: choose(graph, kinds, laned, lanes, members, limit, processors)
        # Now, so that what has no loops is known at once.
        self.loops = {lanes: CudaLoop(self.choose(lanes), device)}

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]
    ) -> list[Tensor]:
        """Take `steps` steps."""
        groups = len(carry[0]) if self.lanes > 1 else 1
        members = groups * self.lanes
        if members not in self.loops:
            self.loops[members] = CudaLoop(self.choose(members), self.device)
        return self.loops[members](steps, carry, samples, constants, groups)


def make_loop(
    graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], lanes: int, device: torch.device
) -> Runnable:
    """The fastest loop that can take this graph.

    Raises:
        UnsupportedError: If none can.
    """
    if device.type == "cpu":
        return InC(graph, kinds, laned, lanes)
    if device.type == "cuda":
        try:
            return InOneKernel(graph, kinds, laned, lanes, device)
        except UnsupportedError as error:
            logger.warning(
                "%s: the step is compiled with torch.compile, and launched again and again by CUDA graphs. "
                "Compiling may take a minute, and is kept in PyTorch's cache",
                error,
            )
        return OnCuda(on_device(graph, device), kinds, laned, lanes)
    raise UnsupportedError(f"there are no loops for tensors on {device.type}")
