"""The samples, or the labels, of one request, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hamlearn.sample import Id


@dataclass(slots=True, eq=False)
class Work:
    """The samples, or the labels, of one request.

    Attributes:
        agent: For which learner.
        labels: Whether these are labels of earlier samples.
        layout: `"one"`; `"rows"`: a list of objects; `"columns"`: an object of lists.
        packed: Whether arrays came as bytes, and go back so.
        count: How many.
        u: Inputs, one per row; `None` for labels.
        target: Targets, one per row, anything where there is none; `None` where no sample has one.
        known: Whether each has a target; `None` where all have one, or none has.
        tau: τ of each; `None` where no sample has its own.
        boundary: Whether each ends its sequence; `None` where none does.
        ids: Id of each; `None` where no sample has one.
        answers: What became of each, once it has been taken: names to columns.
        rare: What only some have, by name and then by number: `"seen"`, `"skipped"`, `"error"`.
        reply: Called when all have been taken, with what went wrong, if anything did.
        done: Whether nobody waits for it any more.
    """

    agent: str
    labels: bool
    layout: Literal["one", "rows", "columns"]
    packed: bool
    count: int
    u: np.ndarray | None
    target: np.ndarray | None
    known: list[bool] | None = None
    tau: list[float | None] | None = None
    boundary: list[bool] | None = None
    ids: list[Id | None] | None = None
    answers: dict[str, list[Any]] = field(default_factory=dict)
    rare: dict[str, dict[int, Any]] = field(default_factory=dict)
    reply: Callable[[Exception | None], None] | None = None
    done: bool = False

    def begin(self) -> None:
        """Make room for the answers."""
        names = ("id", "loss", "learned", "late") if self.labels else ("y", "loss", "t", "sample", "learned")
        self.answers = {name: [None] * self.count for name in names}
        self.rare = {}

    def note(self, index: int, **values: Any) -> None:
        """What became of one."""
        for name, value in values.items():
            if name in self.answers:
                self.answers[name][index] = value
            else:
                self.rare.setdefault(name, {})[index] = value

    def row(self, index: int) -> dict[str, Any]:
        """What became of one, as an object."""
        row = {name: column[index] for name, column in self.answers.items()}
        for name, values in self.rare.items():
            if index in values:
                row[name] = values[index]
        return row

    @property
    def kind(self) -> tuple[Any, ...]:
        """What decides which step is compiled for it, for whose learner."""
        # Numbers that came as text are finite: others were refused.
        finite = not self.packed or all(part is None or np.isfinite(part).all() for part in (self.u, self.target))
        parts = (self.target, self.known, self.tau, self.boundary, self.ids)
        return self.agent, self.labels, finite, *(part is None for part in parts)

    @property
    def single(self) -> int:
        """How many are taken one by one: labels, and samples that wait for theirs."""
        if self.labels or self.ids is None:
            return self.count if self.labels else 0
        return sum(id is not None and not self.has_target(index) for index, id in enumerate(self.ids))

    def has_target(self, index: int) -> bool:
        """Whether a sample has a target."""
        return self.target is not None and (self.known is None or self.known[index])
