"""Named fields: rows such as `{"temperature": 3.1, "gate": "open"}`, encoded as `hamlearn run` encodes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hamlearn.errors import ConfigError, SampleError, StreamError

Row = dict[str, str | int | float | bool | None]
"""A row of named fields: cells by the names of their columns."""

OWN = ("tau", "boundary", "id")
"""Keys that a row may have beside its columns, unless the table has columns of these names."""


class Fields:
    """The encoder of rows of named fields. It is fixed: means and categories are those of the run.

    Args:
        stream: A stream over a table, perhaps standardised; its `encode(row)` makes the input.
        target: Target columns.
        time: The column of time stamps, which a request gives as `tau` instead.

    Attributes:
        classes: Names of the classes of the target; `None` if it is a number.
        targets: Names of the target columns.

    Example:
        >>> from hamlearn import streams
        >>> rows = [{"temperature": 3.1, "gate": "open", "flow": 1.0}]
        >>> table = streams.from_rows(rows, target="flow", categories={"gate": ["open", "closed"]})
        >>> fields = Fields(table, ["flow"])
        >>> fields.sample({"temperature": 3.0, "gate": "open", "flow": 1.5, "id": "a"})
        {'id': 'a', 'u': [3.0, 1.0, 0.0], 'target': [1.5]}
    """

    def __init__(self, stream: Any, target: Sequence[str], time: str | None = None) -> None:
        self._stream, self.targets, self._time = stream, list(target), time
        self.classes: list[str] | None = None
        inner = stream
        while inner is not None and self.classes is None:
            # Wrappers such as standardize pass rows through but do not repeat the names of classes.
            self.classes, inner = getattr(inner, "classes", None), getattr(inner, "inner", None)
        try:
            stream.encode({})
        except SampleError:
            pass
        except StreamError as error:
            raise ConfigError(f"rows of named fields cannot be encoded: {error}") from error

    def sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The same sample with a vector as its input.

        Raises:
            SampleError: Naming the column that is unknown, missing or cannot be read.
        """
        if self._time is not None and self._time in row:
            raise SampleError(
                f"the column {self._time!r} holds time stamps. Send the time since the last row as 'tau'."
            )
        cells = dict(row)
        given = {name: cells.pop(name) for name in OWN if name in cells}
        target = [cells.pop(name, None) for name in self.targets]
        u: torch.Tensor = self._stream.encode(cells)
        sample = {**given, "u": u.tolist()}
        if any(cell is not None for cell in target):
            if self.classes is not None:
                return sample | {"target": self._class(target[0])}
            missing = [name for name, cell in zip(self.targets, target, strict=True) if cell is None]
            if missing:
                raise SampleError(
                    f"the target {missing[0]!r} is missing beside others. Give all targets, or none."
                )
            sample["target"] = target
        return sample

    def late(self, target: Any) -> Any:
        """The target of a label that comes later: a text is the name of a class, and one number a whole target."""
        if isinstance(target, str):
            return self._class(target)
        return [target] if self.classes is None and not isinstance(target, list) else target

    def _class(self, name: Any) -> int:
        """The number of a class of the target column."""
        classes = self.classes or []
        if str(name) not in classes:
            raise SampleError(
                f"{self.targets[0]!r} = {name!r} is not a class. Known are {', '.join(classes)[:300]}."
            )
        return classes.index(str(name))
