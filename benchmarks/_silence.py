"""A rank of a pipeline whose messages are always there already: what its ticks take without communication."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import torch

from hamlearn.distributed import PipelineLearner
from hamlearn.distributed.messages import Item
from hamlearn.sample import Sample


class Echoing:
    """One end of a line on which any message is there at once, and nothing that is sent goes anywhere."""

    def __init__(self) -> None:
        self._asked: deque[tuple[list[Item], int]] = deque()

    def expect(self, items: list[Item], tick: int) -> None:
        """Ask for a message."""
        self._asked.append((items, tick))

    def take(self, before: float = math.inf) -> list[Item]:
        """Small numbers in the forms that were asked for."""
        taken: list[Item] = []
        while self._asked and self._asked[0][1] < before:
            taken += self._asked.popleft()[0]
        for item in taken:
            item.value = torch.full_like(item.like, 1e-3)
        return taken

    def send(self, items: list[Item]) -> None:
        """Let a message go nowhere."""

    def settle(self) -> None:
        """Nothing is under way."""


def silence(learner: PipelineLearner, sample: Sample) -> Callable[[], object]:
    """Let a rank know the form of its messages by one real step, then cut it off; what makes one tick of it."""
    learner.step(sample)
    learner._settle()
    border = learner._border
    for name in ("states_in", "costates_out", "states_out", "costates_in"):
        if getattr(border, name) is not None:
            setattr(border, name, Echoing())
    learner._ticker.drop()
    return lambda: learner._ticker.show(sample, 1)
