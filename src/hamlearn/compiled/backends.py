"""Ways to run a recorded step many times: C loops on the CPU, PyTorch's own compiler and CUDA graphs on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, fx

from hamlearn.compiled.cuda import OnCuda
from hamlearn.loops import Kind, Loop, UnsupportedError, cached, translate

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
        return self.loop(steps, carry, samples, constants, self.lanes, groups)


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
        logger.warning("compiling a step with torch.compile: it may take a minute, and is kept in PyTorch's cache")
        return OnCuda(graph, kinds, laned, lanes)
    raise UnsupportedError(f"there are no loops for tensors on {device.type}")
