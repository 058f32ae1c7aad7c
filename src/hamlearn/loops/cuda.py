"""Steps without loops on a GPU: compiled by `torch.compile`, and recorded as CUDA graphs of several steps.

This is for what `hamlearn.loops` has no kernel for: an operation that it does not know, or a step that is too
large for it. Every step is about ten launches, where a kernel takes all steps in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap

from hamlearn._base.torch_private import compile_errors, foreach_copy_
from hamlearn.loops.capture import capture
from hamlearn.loops.program import Kind
from hamlearn.loops.values import UnsupportedError

UNROLL = 16
"""Steps in one CUDA graph."""


class OnCuda:
    """A loop over steps on a GPU: CUDA graphs of `UNROLL` steps, and of one for the rest.

    Args:
        graph: The step.
        kinds: What each input is.
        laned: Which inputs each member of a population has for itself.
        lanes: Number of members in a group.
    """

    def __init__(self, graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], lanes: int) -> None:
        self.kinds = list(kinds)
        self.carried = self.kinds.count("carry")
        step = _over_members(graph, laned) if lanes > 1 else graph
        self.step: Callable[..., Any] = torch.compile(step, fullgraph=True, dynamic=False)
        self._recorded: dict[int, _Recorded] = {}

    @torch.no_grad()
    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor]
    ) -> list[Tensor]:
        """Take `steps` steps."""
        rows, index = [], 0
        for count in (UNROLL, 1):
            times = (steps - index) // count
            if not times:
                continue
            if count not in self._recorded:
                first = [sample[index : index + count] for sample in samples]
                self._recorded[count] = _Recorded(self._one, count, carry, first, constants)
            recorded = self._recorded[count]
            recorded.load(carry, constants)
            for _ in range(times):
                rows.append(recorded.replay([sample[index : index + count] for sample in samples]))
                index += count
            foreach_copy_([tensor.detach() for tensor in carry], recorded.carry)
        return [torch.cat(column) for column in zip(*rows, strict=True)]

    def _one(
        self, carry: list[Tensor], sample: list[Tensor], constants: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One step: the new carry and the results."""
        groups = {"carry": iter(carry), "sample": iter(sample), "constant": iter(constants)}
        inputs = [next(groups[kind]).detach() for kind in self.kinds]
        try:
            outputs = list(self.step(*inputs))
        except compile_errors() as error:
            reason = " ".join(str(error).split())
            raise UnsupportedError(f"torch.compile failed: {reason[:300]}") from error
        return outputs[: self.carried], outputs[self.carried :]


class _Recorded:
    """A CUDA graph of some steps, with memory of its own for all that goes in and out."""

    def __init__(
        self,
        one: Callable[..., Any],
        count: int,
        carry: list[Tensor],
        samples: list[Tensor],
        constants: list[Tensor],
    ) -> None:
        self.carry = [tensor.detach().clone() for tensor in carry]
        self.samples = [tensor.clone() for tensor in samples]
        self.constants = [tensor.detach().clone() for tensor in constants]
        self.results: list[Tensor] = []
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                one(self.carry, [sample[0] for sample in self.samples], self.constants)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            rows, now = [], self.carry
            for index in range(count):
                now, results = one(now, [sample[index] for sample in self.samples], self.constants)
                rows.append(results)
            self.results = [torch.stack(column) for column in zip(*rows, strict=True)]
            foreach_copy_(self.carry, now)

    def load(self, carry: list[Tensor], constants: list[Tensor]) -> None:
        """Take up a carry and constants."""
        foreach_copy_([*self.carry, *self.constants], [t.detach() for t in (*carry, *constants)])

    def replay(self, samples: list[Tensor]) -> list[Tensor]:
        """Take the steps of the graph; the carry stays in its memory."""
        foreach_copy_(self.samples, samples)
        self.graph.replay()
        return [result.clone() for result in self.results]


def _over_members(graph: fx.GraphModule, laned: Sequence[bool]) -> Callable[..., list[Tensor]]:
    """The step for all members at once: groups and lanes become one axis, over which `vmap` runs."""
    axes = tuple(-1 if own else None for own in laned)
    each = vmap(lambda *inputs: tuple(graph(*inputs)), in_dims=axes, out_dims=-1)

    def step(*inputs: Tensor) -> list[Tensor]:
        width = next(x.shape[-1] for x, own in zip(inputs, laned, strict=True) if own)
        flat = [x.movedim(0, -2).flatten(-2) if own else x for x, own in zip(inputs, laned, strict=True)]
        return [y.unflatten(-1, (-1, width)).movedim(-2, 0).contiguous() for y in each(*flat)]

    return step
