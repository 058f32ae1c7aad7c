"""Rows whose labels come later: what is kept of them until then."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import SampleError

MOST = 100_000
"""Rows that may wait; the oldest is forgotten first."""


class Waited(NamedTuple):
    """A row as it was when it came.

    A network that reads the last target has to learn from the one that was known then: if labels are late, it
    is old and less informative. The mixture judges the outputs of the networks of then, not those after they have
    learned from the rows since.

    Attributes:
        row: The row.
        answered: The last target that was known, the outputs of the networks, and the answer; `None` before the
            first label.
    """

    row: dict[Any, Any]
    answered: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


PARTS = ("last", "outputs", "answer")
"""Names of `Waited.answered` in a checkpoint."""


class Waiting:
    """The rows that wait, by id, in the order in which they came."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, Waited] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id: Hashable, waited: Waited) -> None:
        """Keep a row.

        Raises:
            SampleError: If one of that id waits already.
        """
        if id in self._rows:
            raise SampleError(f"id={id!r} waits for its label already: give each row an id of its own")
        self._rows[id] = waited
        if len(self._rows) > MOST:
            del self._rows[next(iter(self._rows))]

    def __getitem__(self, id: Hashable) -> Waited:
        if id not in self._rows:
            raise SampleError(
                f"id={id!r}: no row waits under this id; `wait_one(x, id)` keeps it until its label comes"
            )
        return self._rows[id]

    def drop(self, id: Hashable) -> None:
        """Keep a row no longer."""
        del self._rows[id]

    def saved(self) -> tuple[dict[str, Tensor], list[Any]]:
        """Tensors and the rest, as a checkpoint takes them."""
        tensors, about = {}, []
        for place, (id, waited) in enumerate(self._rows.items()):
            about.append([_plain(id), [[_plain(name), _plain(value)] for name, value in waited.row.items()]])
            for name, array in zip(PARTS, waited.answered or (), strict=False):
                tensors[f"waiting.{place}.{name}"] = torch.from_numpy(array)
        return tensors, about

    @classmethod
    def loaded(cls, tensors: Mapping[str, Tensor], about: list[Any]) -> Waiting:
        """The object that was saved."""
        made = cls()
        for place, (id, row) in enumerate(about):
            parts = [tensors.get(f"waiting.{place}.{name}") for name in PARTS]
            last, outputs, answer = (None if part is None else part.numpy().copy() for part in parts)
            answered = None if last is None or outputs is None or answer is None else (last, outputs, answer)
            made.add(id, Waited(dict(row), answered))
        return made


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
