"""A stream whose state carries what goes along with it, so that one checkpoint holds all of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hamlearn._base.claims import number, whole
from hamlearn.errors import CheckpointError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block, gathered


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
        self._iterator: Iterator[Any] = iter(())
        self._failed: BaseException | None = None

    def __iter__(self) -> Iterator[Sample]:
        self._require_loaded()
        self._iterator = iter(self._stream)
        for _ in range(self._skip):
            next(self._iterator, None)
        return self._met(self._iterator)

    def _met(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self.taken, self.last = self.taken + 1, sample
            if self._meet is not None and self.taken > self._first:
                self._meet(sample)
            yield sample

    def block(self, n: int) -> Block | list[Any] | None:
        """The next samples, at most `n`, for the compiled engine."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        block: Block | list[Any] | None
        if hasattr(self._stream, "block"):
            block = self._stream.block(n)
        else:
            block, self._failed = gathered(self._iterator, n)
        if block:
            self.taken += block.count if isinstance(block, Block) else len(block)
        return block or None

    def mark(self) -> dict[str, Any]:
        """Where the stream stands, without what goes along."""
        own = getattr(self._stream, "state_dict", None)
        return {"stream": None if own is None else own(), "taken": self.taken}

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """The present state, with the stream after `taken` samples of the block that began at the mark."""
        place = mark["stream"]
        if place is not None and hasattr(self._stream, "state_at"):
            place = self._stream.state_at(place, taken)
        return self.state_dict() | {"stream": place, "taken": mark["taken"] + (taken if self.live else 0)}

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
    def source(self) -> Any:
        """The stream."""
        return self._stream

    @property
    def live(self) -> bool:
        """As the stream."""
        return bool(getattr(self._stream, "live", False))

    @property
    def replayable(self) -> bool:
        """As the stream."""
        return bool(getattr(self._stream, "replayable", not isinstance(self._stream, Iterator)))

    def saved(self, state: Mapping[str, Any]) -> None:
        """Pass it on."""
        saved = getattr(self._stream, "saved", None)
        if saved is not None and state["stream"] is not None:
            saved(state["stream"])

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
