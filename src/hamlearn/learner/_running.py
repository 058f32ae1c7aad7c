"""Reading a stream: one sample or one block at a time, counted, so that reading can be taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hamlearn._claims import record, whole
from hamlearn.errors import StreamError
from hamlearn.state import Sample
from hamlearn.streams.blocks import Block, blocks_of

END: Any = object()
R = TypeVar("R")


def checked_place(state: Any) -> dict[str, Any]:
    """What `Reader.state_dict` told, out of a file; the stream looks at its own part when it is opened."""
    place = record(state, "the place in the stream", "position", "stream", "skip")
    whole(place["position"], "the position in the stream")
    whole(place["skip"], "the number of samples to skip")
    return place


class Reader:
    """Hands the samples of a stream to an engine and keeps count.

    An engine may read ahead by a block: `peek` shows what comes, `take` says that a step has taken one sample. The
    place that is saved is always that of the steps, not of the stream.

    Attributes:
        position: How many samples of the present stream have been taken.
    """

    def __init__(self) -> None:
        self.position = 0
        self._stream: Any = None
        self._source: Iterator[Block] | None = None
        self._size = 1
        self._held: Block | None = None
        self._start = 0
        self._mark: Any = None
        self._tokens = 0
        self._sequences = False
        self._turn = 0
        self._loaded: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # An iterator cannot be copied: a copy knows the place, and takes it up when it is told to resume.
        return vars(self) | {"_source": None, "_held": None, "_stream": None, "_loaded": self.state_dict()}

    def reports(
        self,
        step: Callable[[Sample], R],
        stream: Iterable[Sample],
        max_steps: int | None,
        resume: bool,
        pending: Callable[[], int],
    ) -> Iterator[R]:
        """Yield a report for each sample; `pending` says how many tokens still wait for their boundary."""
        iterator = self._samples(stream, self._open(stream, resume))
        done = 0
        while max_steps is None or done < max_steps:
            sample = next(iterator, END)
            if sample is END:
                self.end(pending())
                return
            report = step(sample)
            done += 1
            self._count(sample.boundary)
            yield report

    def open_blocks(self, stream: Iterable[Sample], resume: bool) -> int:
        """Begin to read blocks of `stream`; answers the number of this turn."""
        skip = self._open(stream, resume)
        size = lambda: self._size  # noqa: E731
        self._source = stream.blocks(size) if hasattr(stream, "blocks") else blocks_of(stream, size)
        while skip:
            block = self.peek(skip)
            if block is None:
                raise self._too_short(skip)
            self._start, skip = self._start + block.count, skip - block.count
        return self._turn

    def check_turn(self, turn: int) -> None:
        """Raise where another run has begun since `turn`."""
        if turn != self._turn:
            raise StreamError(
                "this run was overtaken by a newer one of the same learner, and samples that it has read ahead "
                "are lost: finish one run before the next, or use engine='eager'"
            )

    def peek(self, size: int) -> Block | None:
        """The samples to come, at most `size` of them; `None` at the end."""
        assert self._source is not None
        if self._held is None or self._start == self._held.count:
            self._size = size
            self._mark, self._start = self._stream_state(), 0
            self._held = next(self._source, None)
        if self._held is None:
            return None
        return self._held.part(self._start, min(self._start + size, self._held.count))

    def take(self, count: int) -> None:
        """Count the next samples as taken."""
        block, start, stop = self._held, self._start, self._start + count
        assert block is not None
        self.position += count
        self._start = stop
        self._loaded = None
        ends = [] if block.boundary is None else block.boundary[start:stop]
        if any(ends):
            self._sequences = True
            self._tokens = ends[::-1].index(True)
        else:
            self._tokens += count

    def end(self, waiting: int) -> None:
        """Raise if the stream ended within a sequence; `waiting` tokens are known to have waited for its end."""
        waiting = waiting or (self._tokens if self._sequences else 0)
        if waiting:
            counted = f"{waiting} token{'s' * (waiting > 1)}"
            raise StreamError(
                f"the stream ended {counted} into a sequence: mark the last token of each sequence "
                "with boundary=True"
            )

    def state_dict(self) -> dict[str, Any]:
        """Position, and the stream's own state where it has one, as JSON."""
        if self._loaded is not None:
            return self._loaded
        if self._held is not None and self._start < self._held.count:
            # A stream that keeps more than a place, such as scores, tells the rest as it is now.
            at = getattr(self._stream, "state_at", lambda mark: mark)
            return {"position": self.position, "stream": at(self._mark), "skip": self._start}
        return {"position": self.position, "stream": self._stream_state(), "skip": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position that `state_dict` told; the stream itself is put back when it is opened."""
        # A run that is going on keeps its stream, and what it has read ahead of it.
        self.position, self._loaded = state["position"], dict(state)

    def _stream_state(self) -> Any:
        own = getattr(self._stream, "state_dict", None)
        return own() if own is not None else None

    def _count(self, boundary: bool) -> None:
        self.position += 1
        self._loaded = None
        self._tokens = 0 if boundary else self._tokens + 1
        self._sequences = self._sequences or boundary

    def _open(self, stream: Any, resume: bool) -> int:
        """Put the stream where reading goes on, and answer how many of its samples are to be passed over first."""
        self._turn += 1
        same = stream is self._stream
        known: dict[str, Any] = (
            self.state_dict() if same or self._loaded is not None else {"stream": None, "skip": 0}
        )
        # What has been read of an iterator cannot be read again.
        keeps = same and iter(stream) is stream and not hasattr(stream, "load_state_dict")
        if not keeps:
            self._held = None
        self._stream, self._loaded = stream, None
        self._tokens, self._sequences = 0, False
        if not resume:
            self.position = 0
            return 0
        if keeps:
            return 0
        if known["stream"] is not None and hasattr(stream, "load_state_dict"):
            stream.load_state_dict(known["stream"])
            return int(known["skip"])
        return self.position

    def _samples(self, stream: Iterable[Sample], skip: int) -> Iterator[Sample]:
        iterator = iter(stream)
        for passed in range(skip):
            if next(iterator, END) is END:
                raise self._too_short(skip - passed)
        while self._held is not None and self._start < self._held.count:
            self._start += 1
            yield self._held.sample(self._start - 1)
        self._held = None
        yield from iterator

    def _too_short(self, missing: int) -> StreamError:
        return StreamError(
            f"the stream ended {missing} samples before the place where the checkpoint was saved, after "
            f"{self.position} samples: resume with the stream that the learner was reading"
        )
