"""A stream whose state carries what goes along with it, so that one checkpoint holds all of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hamlearn.errors import CheckpointError
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block, gathered


class Carried:
    """One pass over a stream, with metrics and records in its state.

    Args:
        stream: Any iterable of samples. One without a state of its own is passed over up to its place.
        parts: What goes along: names to objects with `state_dict` and `load_state_dict`.
        first: How many samples the learner has taken before this pass.

    Attributes:
        source: The stream.
        taken: Samples that were handed out, those of earlier passes included.
    """

    def __init__(self, stream: Any, parts: Mapping[str, Any], first: int = 0) -> None:
        self.source, self._parts, self._first = stream, parts, first
        self.taken = self._skip = 0
        self._loaded = False
        self._iterator: Iterator[Any] = iter(())
        self._failed: BaseException | None = None
        self.live = bool(getattr(stream, "live", False))
        self.replayable = bool(getattr(stream, "replayable", not isinstance(stream, Iterator)))

    def __iter__(self) -> Iterator[Sample]:
        if self._first and not self._loaded:
            raise self._foreign()
        self._iterator = iter(self.source)
        for _ in range(self._skip):
            next(self._iterator, None)
        return self._counted()

    def _counted(self) -> Iterator[Sample]:
        for sample in self._iterator:
            self.taken += 1
            yield sample

    def block(self, n: int) -> Block | list[Any] | None:
        """The next samples, at most `n`, for the compiled engine."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        block: Block | list[Any] | None
        if hasattr(self.source, "block"):
            block = self.source.block(n)
        else:
            block, self._failed = gathered(self._iterator, n)
        if block:
            self.taken += block.count if isinstance(block, Block) else len(block)
        return block or None

    def mark(self) -> dict[str, Any]:
        """Where the stream stands, without what goes along."""
        own = getattr(self.source, "state_dict", None)
        return {"stream": None if own is None else own(), "taken": self.taken}

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """The present state, with the stream after `taken` samples of the block that began at the mark."""
        place = mark["stream"]
        if place is not None and hasattr(self.source, "state_at"):
            place = self.source.state_at(place, taken)
        return self.state_dict() | {"stream": place, "taken": mark["taken"] + (taken if self.live else 0)}

    def state_dict(self) -> dict[str, Any]:
        """The stream's own state if it has one, how much was taken of it, and the states of the parts."""
        return self.mark() | {"parts": {name: part.state_dict() for name, part in self._parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        if set(state) != {"stream", "taken", "parts"} or set(state["parts"]) != set(self._parts):
            raise self._foreign()
        self.taken = state["taken"]
        if state["stream"] is not None and hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(state["stream"])
        else:
            self._skip = self.taken
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self._loaded = True

    def saved(self, state: Mapping[str, Any]) -> None:
        """Tell the stream that a checkpoint with its state is on the disk."""
        if state["stream"] is not None and hasattr(self.source, "saved"):
            self.source.saved(state["stream"])

    def close(self) -> None:
        """Close the stream, if it can be closed."""
        if hasattr(self.source, "close"):
            self.source.close()

    def _foreign(self) -> CheckpointError:
        return CheckpointError(
            f"the learner stands at sample {self._first}, but has loaded nothing of {' and '.join(self._parts)} "
            "to continue from. Load a checkpoint that was saved during the same kind of run, or start a new one."
        )
