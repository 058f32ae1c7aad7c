"""The samples, or the labels, of one request, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hamlearn.sample import Id
from hamlearn.serve.refusals import Refused

Kind = Literal["samples", "labels", "evaluate"]
Layout = Literal["one", "rows", "columns"]


@dataclass(slots=True, eq=False)
class Batch:
    """The samples, or the labels, of one request.

    Attributes:
        kind: `"evaluate"` is for samples that move nothing.
        layout: `"one"`; `"rows"`: a list of objects; `"columns"`: an object of lists.
        u: Inputs, one per row; of labels, rows of width 0.
        target: Targets, one per row; zeros for samples without one.
        known: Whether each has a target.
        tau: τ of each; NaN for the learner's own.
        boundary: Whether each ends its sequence.
        ids: Id of each; `None` for samples without one.
        agent: Key of the learner.
        answers: What became of each.
    """

    kind: Kind
    layout: Layout
    u: np.ndarray
    target: np.ndarray
    known: np.ndarray
    tau: np.ndarray
    boundary: np.ndarray
    ids: list[Id | None]
    agent: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many samples, or labels."""
        return len(self.ids)

    @property
    def learns(self) -> bool:
        """Whether anything is to be learned from it."""
        return self.kind == "labels" or (self.kind == "samples" and bool(self.known.any()))

    @property
    def shape(self) -> tuple[Any, ...]:
        """What decides how long it takes, and whether a step has to be compiled for it."""
        usual = bool(self.known.all()), bool(np.isnan(self.tau).all()), bool(self.boundary.any())
        with_ids = self.count - self.ids.count(None)
        return (self.agent, self.kind, self.count.bit_length(), with_ids.bit_length(), *usual)

    def response(self) -> Any:
        """The response in the layout of the request.

        Raises:
            Refused: None of it could be taken.
        """
        rows = self.answers
        if all("error" in row for row in rows):
            raise Refused(422, rows[0]["error"])
        if self.layout == "columns":
            return {
                name: [row.get(name) for row in rows] for name in dict.fromkeys(k for row in rows for k in row)
            }
        return rows[0] if self.layout == "one" else rows
