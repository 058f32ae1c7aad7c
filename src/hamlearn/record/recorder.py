"""The recorder: stands between a run and what keeps something of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from hamlearn.errors import CheckpointError
from hamlearn.evaluate import Evaluation
from hamlearn.record.fields import Context, Field, Moment
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
        self._sinks = sinks
        self._context = Context(learner, stream, fields)
        self.step = 0
        for sink in sinks:
            sink.open(self._context)

    def __call__(self, reports: Iterable[T]) -> Iterator[T]:
        """Record reports (of `Learner.run`) or evaluations (of `evaluate`) as they pass."""
        for report in reports:
            self.take(report)
            yield report

    def take(self, report: Any) -> None:
        """Record one report or evaluation."""
        self.step += 1
        evaluation = report if isinstance(report, Evaluation) else None
        moment = Moment(self.step, report if evaluation is None else evaluation.report, evaluation, self._context)
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
