"""Where rows go: the base of all sinks, memory, and TensorBoard."""

from __future__ import annotations

import importlib.util
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.record.moments import DEFAULT, Context, Moment, Row
from hamlearn.record.policies import Every, Policy


class Sink(ABC):
    """Takes what its policy keeps.

    Args:
        policy: What is kept; `None` is every moment.
        fields: What is measured of it.

    Example:
        >>> class Printed(Sink):
        ...     def put(self, row, slot):
        ...         print(row["step"])
        >>> Printed(Every(2), ("step",)).put({"step": 4}, None)
        4
    """

    kept = True
    """Whether what the sink took is there after the run, so that a resumed run must go on with it."""

    def __init__(self, policy: Policy | None, fields: Iterable[str]) -> None:
        self.policy = Every(1) if policy is None else policy
        self.fields = tuple(fields)

    def open(self, context: Context) -> None:
        """Called once, before the first moment."""
        context.check((*self.fields, *getattr(self.policy, "over", ())))

    def take(self, moment: Moment) -> None:
        """Called with every moment."""
        kept = self.policy.offer(moment, self.fields)
        if kept is not None:
            self.put(*kept)

    @abstractmethod
    def put(self, row: Row, slot: int | None) -> None:
        """Keep a row, in the place of the one that had the slot."""

    def close(self) -> None:
        """Called once, after the last moment; a sink that holds nothing open has nothing to do."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What to go on from, JSON-able; what was put before is safe when this returns."""
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, and forget what was put after it."""
        self.policy.load_state_dict(state["policy"])


class Memory(Sink):
    """Rows in memory, in `rows`.

    Args:
        policy: What is kept; `None` is every moment, which on an endless stream fills the memory.
        fields: What is measured.

    Example:
        >>> from hamlearn.record import Memory, Reservoir
        >>> Memory(Reservoir(1000)).rows
        []
    """

    def __init__(self, policy: Policy | None = None, fields: Iterable[str] = DEFAULT) -> None:
        super().__init__(policy, fields)
        self._rows: list[Row] = []

    @property
    def rows(self) -> list[Row]:
        """What is kept, in the order of the steps."""
        if self._rows and "step" not in self._rows[0]:
            return list(self._rows)
        return sorted(self._rows, key=lambda row: row["step"])

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return [row.get(name) for row in self.rows]

    def put(self, row: Row, slot: int | None) -> None:
        """Keep a row."""
        if slot is not None and slot < len(self._rows):
            self._rows[slot] = row
        else:
            self._rows.append(row)

    def state_dict(self) -> dict[str, Any]:
        """All rows, and the policy's state."""
        return {**super().state_dict(), "rows": list(self._rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these rows."""
        super().load_state_dict(state)
        self._rows = list(state["rows"])


class TensorBoard(Sink):
    """Rows as scalars for TensorBoard (extra `tensorboard`).

    Args:
        folder: Where its event files go.
        policy: What is written; `None` is every hundredth moment.
        fields: What is measured.
        prefix: Before the name of each scalar.

    Example:
        >>> import tempfile
        >>> sink = TensorBoard(tempfile.mkdtemp(), Every(1000), fields=("loss",))
        >>> sink.fields
        ('loss', 'step')
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        policy: Policy | None = None,
        fields: Iterable[str] = DEFAULT,
        prefix: str = "hamlearn/",
    ) -> None:
        super().__init__(Every(100) if policy is None else policy, (*fields, "step"))
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(f"records for TensorBoard need it: {install('tensorboard')}")
        self._folder, self._prefix = os.fspath(folder), prefix
        self._writer: Any = None
        self._purge: int | None = None
        self._step = 0

    def put(self, row: Row, slot: int | None) -> None:
        """Write each number of a row."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, purge_step=self._purge)
        self._step = row["step"]
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(self._prefix + name, value, row["step"])

    def close(self) -> None:
        """Write what waits, and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def state_dict(self) -> dict[str, Any]:
        """The last step, once it is written."""
        if self._writer is not None:
            self._writer.flush()
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have TensorBoard forget what was written after the state was taken."""
        super().load_state_dict(state)
        self._step = int(state["step"])
        self._purge = self._step + 1
