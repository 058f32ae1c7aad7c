"""A pure step of tensors as one compiled loop over time, as the compiled engine makes it of a learner's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hamlearn.loops import Kind, Loop, translate
from hamlearn.loops.recording import pure_graph

Step = Callable[..., list[Tensor]]


class Looped:
    """`step(*carry, *sample)`, which returns the new carry and then its results, over whole stretches of samples.

    Args:
        step: Pure; changes nothing in place.
        carry: What the first step starts from; copied.
        sample: One sample, for its shapes and types.

    Example:
        >>> import torch
        >>> loop = Looped(lambda total, x: [total + x, total * x], [torch.zeros(2)], [torch.zeros(2)])
        >>> loop([torch.ones(3, 2)])[0].tolist()
        [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
        >>> loop.carry[0].tolist()
        [3.0, 3.0]
    """

    def __init__(self, step: Step, carry: Sequence[Tensor], sample: Sequence[Tensor]) -> None:
        self.begin(carry)
        graph = pure_graph(step, [*self.carry, *sample])
        kinds: list[Kind] = ["carry" for _ in carry]
        kinds += ["sample" for _ in sample]
        self._loop = Loop(translate(graph, kinds, [False] * len(kinds)))

    def begin(self, carry: Sequence[Tensor]) -> None:
        """Start again, from a carry of the same shapes."""
        self.carry = [tensor.detach().clone().contiguous() for tensor in carry]

    def __call__(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """Take all steps; the results, one row a step."""
        given = [tensor.contiguous() for tensor in samples]
        return self._loop(len(given[0]), self.carry, given, [])


def eagerly(step: Step, carry: Sequence[Tensor], samples: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The same by PyTorch, step by step: (the last carry, results)."""
    now, rows = list(carry), []
    for row in zip(*samples, strict=True):
        out = step(*now, *row)
        now, results = out[: len(now)], out[len(now) :]
        rows.append(results)
    return now, [torch.stack(column) for column in zip(*rows, strict=True)]
