"""Compiled loops over memory that stays where it is: a call is one call of C, for one step or for many."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hamlearn.loops.backends import InC
from hamlearn.loops.library import Loop, pointers_to
from hamlearn.loops.program import Kind
from hamlearn.loops.recording import pure_graph

Tensors = Sequence[Tensor]


class Bound:
    """A loop whose carry, samples, constants and results have fixed places in memory.

    What a call of `Loop` does before the C function runs, about 50 µs, is done once, when it is bound. The tensors
    may be written to between two calls, through views of them too; none may be replaced.

    Args:
        loop: The compiled loop.
        carry: What goes from step to step; it changes in place.
        samples: Inputs of the steps: time is the first axis, whose length is the most steps of a call.
        constants: Tensors that are the same for all steps of a call.

    Attributes:
        loop: As given, as are `carry` and `samples`.
        results: What the steps of the last call have returned, one row for each, in memory that the next call
            overwrites.
    """

    def __init__(self, loop: Loop, carry: Tensors, samples: Tensors, constants: Tensors) -> None:
        self.carry, self.samples, program = list(carry), list(samples), loop.program
        rows = len(self.samples[0])
        self.results = [torch.zeros((rows, *shape), dtype=dtype) for shape, dtype, _ in program.results]
        held = [tensor.detach() for tensor in program.constants]
        # They are kept: the C function has their addresses only.
        self._memory = (self.carry, self.samples, [*constants, *held], self.results)
        self._scratch = torch.zeros(program.scratch + 64, dtype=torch.uint8)
        self._pointers = [pointers_to(list(tensors)) for tensors in self._memory]
        start = self._scratch.data_ptr()
        self.loop = loop
        self._run, self._at = loop.run, start + -start % 64

    def sibling(self, carry: Tensors, constants: Tensors) -> Bound:
        """The same loop over the same samples, for another carry: the results of both have one place in memory."""
        made = copy.copy(self)
        made.carry = list(carry)
        _, samples, held, results = self._memory
        made._memory = (made.carry, samples, [*constants, *held[len(constants) :]], results)
        made._pointers = [pointers_to(list(tensors)) for tensors in made._memory]
        return made

    def __call__(self, steps: int) -> list[Tensor]:
        """Take the first `steps` samples."""
        self._run(steps, 0, 1, 1, *self._pointers, self._at)
        return self.results


def bind(
    step: Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]],
    carry: Tensors,
    samples: Tensors,
    constants: Tensors = (),
) -> Bound:
    """Compile a pure step, as `hl.loops.scan` does, for calls over fixed memory.

    Args:
        step: From carry, sample and constants, each a list of tensors, to the new carry and the results.
        carry: What goes from step to step, in place.
        samples: Rows for each step.
        constants: Tensors that steps read and that change between calls only. A tensor that the step holds by
            itself, such as a weight of a module, is one more of them.

    Raises:
        UnsupportedError: If the step cannot be compiled.
    """
    first, second = len(carry), len(carry) + len(samples)

    def flat(*given: Tensor) -> list[Tensor]:
        new, results = step(given[:first], given[first:second], given[second:])
        return [tensor.detach() for tensor in (*new, *results)]

    kinds: list[Kind] = ["carry"] * first + ["sample"] * len(samples)  # type: ignore[assignment]
    kinds += ["constant"] * len(constants)
    graph = pure_graph(flat, [*carry, *(row[0] for row in samples), *constants])
    return Bound(InC(graph, kinds, [False] * len(kinds), 1).loop, carry, samples, constants)
