"""The recorder: stands between a run and what keeps something of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.record.fields import NORMS, Field, Moment, fields_of
from hamlearn.record.sinks import Sink

T = TypeVar("T")


class Recorder:
    """Passes reports through and lets each sink keep what its policy asks for.

    Args:
        learner: Whose state is measured.
        *sinks: `Memory`, `JsonLines`, `Predictions`, `TensorBoard`, `Progress`, or your own `Sink`.
        stream: Whose dropped samples are counted.
        fields: Fields of your own: names to functions of (report, learner).

    A step that no policy keeps is not measured.

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
        >>> memory = record.Memory(record.Every(25))
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
        self.fields = fields_of(learner, stream)
        for name, field in (fields or {}).items():
            self.fields[name] = lambda moment, field=field: field(moment.report, learner)  # type: ignore[misc]
        self.norms: list[str] = []
        self.step = 0
        for sink in sinks:
            sink.open(self)

    def check(self, names: Iterable[str]) -> None:
        """Take note of fields that will be asked for; raise `ConfigError` for one that is not known."""
        for name in names:
            if name not in self.fields:
                raise ConfigError(f"the field {name!r} is not known. Known are {', '.join(sorted(self.fields))}.")
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
