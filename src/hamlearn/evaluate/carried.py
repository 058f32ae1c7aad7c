"""A stream whose state carries what goes along with it, so that one checkpoint holds all of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hamlearn._base.claims import number, whole
from hamlearn.errors import CheckpointError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block, blocks_of


class Carried:
    """One pass over a stream, as a learner sees it, with metrics and records in its state.

    Args:
        stream: Any iterable of samples. One without a state of its own is passed over up to its place.
        parts: What goes along: names to objects with `state_dict` and `load_state_dict`.
        first: How many samples the learner has taken before this pass.
        meet: Called with each sample or label that is handed out for the first time, before it is learned.

    Attributes:
        taken: Samples that were handed out, those of earlier passes included.
        last: What was handed out last, one by one.
        moment: A time that whoever meets the samples keeps; `None` where nobody does.
    """

    def __init__(
        self,
        stream: Any,
        parts: Mapping[str, Any],
        first: int = 0,
        meet: Callable[[Sample | Label], None] | None = None,
    ) -> None:
        self._stream, self._parts, self._first, self._meet = stream, parts, first, meet
        self.taken = self._skip = 0
        self.moment: float | None = None
        self.last: Sample | Label | None = None
        self._loaded = False

    def __iter__(self) -> Iterator[Sample]:
        self._require_loaded()
        iterator = iter(self._stream)
        for _ in range(self._skip):
            next(iterator, None)
        for sample in iterator:
            self.taken, self.last = self.taken + 1, sample
            if self._meet is not None and self.taken > self._first:
                self._meet(sample)
            yield sample

    def blocks(self, size: Callable[[], int]) -> Iterator[Block]:
        """Samples in blocks of at most `size()`, for the compiled engine."""
        self._require_loaded()
        if self._skip == 0 and hasattr(self._stream, "blocks"):
            blocks = self._stream.blocks(size)
        else:
            iterator = iter(self._stream)
            for _ in range(self._skip):
                next(iterator, None)
            blocks = blocks_of(iterator, size)
        for block in blocks:
            self.taken += block.count
            yield block

    def state_at(self, mark: dict[str, Any]) -> dict[str, Any]:
        """The present state, with the stream at the place where it was read last."""
        return self.state_dict() | {"stream": mark["stream"], "taken": mark["taken"]}

    def state_dict(self) -> dict[str, Any]:
        """The stream's own state where it has one, how much was taken of it, the moment, and the parts' states."""
        own = getattr(self._stream, "state_dict", None)
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        place = {"stream": None if own is None else own(), "taken": self.taken, "moment": self.moment}
        return place | parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        place = dict(state)
        if set(place) != {"stream", "taken", "moment", *self._parts}:
            raise self._foreign()
        taken = whole(place["taken"], "the number of samples that were taken")
        moment = None if place["moment"] is None else number(place["moment"], "the moment that was reached")
        if place["stream"] is not None and hasattr(self._stream, "load_state_dict"):
            self._stream.load_state_dict(place["stream"])
        else:
            self._skip = taken
        for name, part in self._parts.items():
            part.load_state_dict(place[name])
        self.taken, self.moment, self._loaded = taken, moment, True

    @property
    def reads_ahead(self) -> bool:
        """As the stream."""
        return bool(getattr(self._stream, "reads_ahead", True))

    @property
    def once(self) -> bool:
        """As the stream."""
        return bool(getattr(self._stream, "once", False))

    def settle(self) -> None:
        """Pass it on."""
        settle = getattr(self._stream, "settle", None)
        if settle is not None:
            settle()

    def saved(self, state: Mapping[str, Any]) -> None:
        """Pass it on."""
        saved = getattr(self._stream, "saved", None)
        if saved is not None and state["stream"] is not None:
            saved(state["stream"])

    def put_back(self, mark: Mapping[str, Any]) -> None:
        """Put the stream to a place of this pass; what goes along stays as it is."""
        self._stream.load_state_dict(mark["stream"])
        self.taken = int(mark["taken"])

    def close(self) -> None:
        """Close the stream, where it can be closed."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def _require_loaded(self) -> None:
        if self._first and not self._loaded:
            raise self._foreign()

    def _foreign(self) -> CheckpointError:
        return CheckpointError(
            f"the learner stands at sample {self._first}, but has loaded nothing of {' and '.join(self._parts)} "
            "to go on from. Load a checkpoint that was saved while the same kind of run went on, or start anew."
        )
