"""Reading a stream: one sample, one step, one report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hamlearn.errors import StreamError
from hamlearn.state import Sample, StepReport

END: Any = object()


class Reader:
    """Feeds a stream to a step function and keeps count, so that reading can be taken up again.

    Attributes:
        position: How many samples of the present stream have been taken.
    """

    def __init__(self) -> None:
        self.position = 0
        self._stream: Any = None
        self._state: Any = None

    def reports(
        self,
        step: Callable[[Sample], StepReport],
        stream: Iterable[Sample],
        max_steps: int | None,
        resume: bool,
        pending: Callable[[], int],
    ) -> Iterator[StepReport]:
        """Yield a report for each sample; `pending` says how many tokens still wait for their boundary."""
        iterator = self._open(stream, resume)
        done, tokens, sequences = 0, 0, False
        while max_steps is None or done < max_steps:
            sample = next(iterator, END)
            if sample is END:
                waiting = pending() or (tokens if sequences else 0)
                if waiting:
                    counted = f"{waiting} token{'s' * (waiting > 1)}"
                    raise StreamError(
                        f"the stream ended {counted} into a sequence: mark the last token of each sequence "
                        "with boundary=True"
                    )
                return
            report = step(sample)
            done += 1
            self.position += 1
            tokens = 0 if sample.boundary else tokens + 1
            sequences = sequences or sample.boundary
            yield report

    def state_dict(self) -> dict[str, Any]:
        """Position, and the stream's own state where it has one, as JSON."""
        own = getattr(self._stream, "state_dict", None)
        return {"position": self.position, "stream": own() if own is not None else self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position that `state_dict` told; the stream itself is put back when it is opened."""
        self.position, self._state, self._stream = state["position"], state["stream"], None

    def _open(self, stream: Any, resume: bool) -> Iterator[Sample]:
        same, self._stream = stream is self._stream, stream
        state, self._state = self._state, None
        if not resume:
            self.position = 0
            return iter(stream)
        if same and hasattr(stream, "state_dict"):
            state = stream.state_dict()
        if state is not None and hasattr(stream, "load_state_dict"):
            stream.load_state_dict(state)
            return iter(stream)
        iterator = iter(stream)
        for passed in range(self.position):
            if next(iterator, END) is END:
                raise StreamError(
                    f"the stream ended after {passed} samples, but the checkpoint was saved after "
                    f"{self.position}: resume with the stream that the learner was reading"
                )
        return iterator
