"""The recorder stands between a run and its sinks; memory, the simplest of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import Evaluation
from hamlearn.learner import Learner
from hamlearn.learner.learner import ask_norms
from hamlearn.record.fields import DEFAULT, NORMS, Field, Row, fields_of, norms

T = TypeVar("T")


class Moment:
    """One step of a learner, as the sinks see it: `moment["loss"]` measures a field once.

    Args:
        step: Its number, from 1.
        taken: A report, or an evaluation.
        recorder: What the fields are, and of which learner.
    """

    __slots__ = ("_measured", "_recorder", "evaluation", "report", "step")

    def __init__(self, step: int, taken: Any, recorder: Recorder) -> None:
        self.step, self._recorder = step, recorder
        self.evaluation = taken if isinstance(taken, Evaluation) else None
        self.report = taken.report if isinstance(taken, Evaluation) else taken
        self._measured: Row = {"step": step}

    def __getitem__(self, name: str) -> Any:
        if name not in self._measured:
            recorder = self._recorder
            if name in NORMS:
                # All that any sink asks for; a compiled step may have measured them.
                found = getattr(self.report, "norms", {})
                known = all(name in found for name in recorder.norms)
                self._measured |= found if known else norms(recorder.learner, recorder.norms)
            else:
                self._measured[name] = recorder.fields[name](self.report, recorder.learner)
        return self._measured[name]

    def row(self, names: Iterable[str]) -> Row:
        """The named fields, all scores, and those of the baselines."""
        row = {name: self[name] for name in names}
        if self.evaluation is not None:
            row |= self.evaluation.scores
            row |= {f"{name} (window)": value for name, value in self.evaluation.window.items()}
            for baseline, values in self.evaluation.baselines.items():
                row |= {f"{name} ({baseline})": value for name, value in values.items()}
        return row


class Sink(ABC):
    """Keeps a row of every n-th step.

    A sink that a resumed run must continue sets `kept`, and has `state_dict` and `load_state_dict`; what was put
    before is on the disk when `state_dict` returns.

    Args:
        every: Keep the n-th step, the 2n-th, and so on.
        fields: The values that are measured for them.

    Example:
        >>> class Printed(Sink):
        ...     def put(self, row):
        ...         print(row["step"])
        >>> Printed(2, ("step",)).put({"step": 4})
        4
    """

    kept = False

    def __init__(self, every: int = 1, fields: Iterable[str] = DEFAULT) -> None:
        if every < 1:
            raise ConfigError(f"every={every} keeps nothing. Give 1 or more.")
        self.every, self.fields = every, tuple(fields)

    def open(self, recorder: Recorder) -> None:
        """Called once, before the first step."""
        recorder.check(self.fields)

    def take(self, moment: Moment) -> None:
        """Called with every step."""
        if moment.step % self.every == 0:
            self.put(moment.row(self.fields))

    @abstractmethod
    def put(self, row: Row) -> None:
        """Keep a row."""

    def close(self) -> None:
        """Called once, after the last step; a sink that holds nothing open has nothing to do."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What to continue from, JSON-able."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `state_dict` gave."""


class Memory(Sink):
    """Rows in memory, in `rows`.

    Args:
        every: Keep every so many-th step.
        fields: The measured values.
        last: How many rows are kept at most, the newest; `None`: all, which fills the memory on an endless stream.

    Example:
        >>> memory = Memory(fields=("step",), last=2)
        >>> for step in (1, 2, 3):
        ...     memory.put({"step": step})
        >>> memory.column("step")
        [2, 3]
    """

    def __init__(self, every: int = 1, fields: Iterable[str] = DEFAULT, last: int | None = None) -> None:
        super().__init__(every, fields)
        self._rows: deque[Row] = deque(maxlen=last)

    @property
    def rows(self) -> list[Row]:
        """The rows that are kept, oldest first."""
        return list(self._rows)

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return [row.get(name) for row in self._rows]

    def put(self, row: Row) -> None:
        """Keep a row."""
        self._rows.append(row)


class Recorder:
    """Passes reports through and lets each sink keep what it asks for.

    Args:
        learner: Whose state is measured.
        *sinks: `Memory`, `JsonLines`, `Predictions`, `TensorBoard`, `Progress`, or your own `Sink`.
        stream: Whose dropped samples are counted.
        fields: Fields of your own: names to functions of (report, learner).

    A step that no sink keeps is not measured.

    Attributes:
        learner: As given.
        fields: What can be measured, by name.
        norms: Those of h, z, ω and θ that a sink asks for.
        step: How many steps were taken.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import record, streams
        >>> learner = hl.Learner(
        ...     hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss, hl.Hyper()
        ... )
        >>> stream = streams.take(streams.signals.sinusoids(), 100)
        >>> memory = record.Memory(every=25)
        >>> with record.Recorder(learner, memory) as recorder:
        ...     for report in recorder(learner.run(stream)):
        ...         pass
        >>> memory.column("step")
        [25, 50, 75, 100]
    """

    def __init__(
        self, learner: Any, *sinks: Sink, stream: Any = None, fields: Mapping[str, Field] | None = None
    ) -> None:
        self.learner, self._sinks = learner, sinks
        self.fields = fields_of(stream) | dict(fields or {})
        self.norms: list[str] = []
        self.step = 0
        for sink in sinks:
            sink.open(self)
        if isinstance(learner, Learner):
            ask_norms(learner, self.norms)

    def check(self, names: Iterable[str]) -> None:
        """Take note of fields that will be asked for; raise `ConfigError` for one that is not known."""
        known = {"step", *NORMS, *self.fields}
        for name in names:
            if name not in known:
                raise ConfigError(f"the field {name!r} is not known. Known are {', '.join(sorted(known))}.")
            if name in NORMS and name not in self.norms:
                self.norms.append(name)

    def __call__(self, reports: Iterable[T]) -> Iterator[T]:
        """Record reports (of `Learner.run`) or evaluations (of `evaluate`) as they pass."""
        for report in reports:
            self.take(report)
            yield report

    def take(self, report: Any) -> None:
        """Record one report or evaluation."""
        self.step += 1
        moment = Moment(self.step, report, self)
        for sink in self._sinks:
            sink.take(moment)

    def close(self) -> None:
        """Close all sinks."""
        if isinstance(self.learner, Learner):
            ask_norms(self.learner, ())
        for sink in self._sinks:
            sink.close()

    def state_dict(self) -> dict[str, Any]:
        """What to continue from, JSON-able; all that was recorded before is on the disk when this returns."""
        return {"step": self.step, "sinks": [sink.state_dict() for sink in self._sinks if sink.kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; what was recorded after it is removed."""
        sinks = [sink for sink in self._sinks if sink.kept]
        if len(state["sinks"]) != len(sinks):
            raise CheckpointError(
                f"the state is that of {len(state['sinks'])} sinks, but this recorder has {len(sinks)}. "
                "Build it with the same sinks in the same order."
            )
        for sink, part in zip(sinks, state["sinks"], strict=True):
            sink.load_state_dict(part)
        self.step = int(state["step"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
