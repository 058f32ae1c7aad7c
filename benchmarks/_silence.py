"""A rank of a pipeline whose messages are always there already: what its ticks take without communication."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from hamlearn.distributed import PipelineLearner
from hamlearn.sample import Sample


class Echoing:
    """One end of a line on which any message is there at once, and nothing that is sent goes anywhere."""

    def __init__(self) -> None:
        self._asked: deque[Tensor] = deque()

    def expect(self, like: Tensor, tick: int) -> None:
        """Ask for a message."""
        self._asked.append(like)

    def take(self) -> Tensor:
        """Small numbers in the form that was asked for."""
        return torch.full_like(self._asked.popleft(), 1e-3)

    def send(self, value: Tensor | None, like: Tensor, tick: int) -> None:
        """Let a message go nowhere."""

    def settle(self) -> None:
        """Nothing is under way."""

    def drop(self) -> None:
        """Forget what was asked for."""
        self._asked.clear()

    def __len__(self) -> int:
        return len(self._asked)


def silence(learner: PipelineLearner, sample: Sample) -> Callable[[], object]:
    """Let a rank know the form of its messages by one real step, then cut it off; what makes one tick of it."""
    learner.step(sample)
    learner._settle()
    border = learner._border
    for name in ("states_in", "costates_out", "states_out", "costates_in"):
        if getattr(border, name) is not None:
            setattr(border, name, Echoing())
    for entries in border.entries:
        entries.clear()
    learner._ticker.drop()
    return lambda: learner._ticker.show(sample, 1)
