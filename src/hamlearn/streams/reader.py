"""Reading a stream: one sample or one block at a time, counted, so that reading can be taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hamlearn._base.claims import record, whole
from hamlearn.errors import StreamError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block, alone, blocks_of
from hamlearn.streams.iterables import SampleIterator

END: Any = object()
R = TypeVar("R")


class Progress(NamedTuple):
    """How far reading has come.

    Attributes:
        position: How many samples of the present stream have been taken.
        tokens: How many of them since the last boundary.
        sequences: Whether there has been a boundary.
        start: How many samples of the block in hand.
        loaded: A place that was loaded and not yet taken up.
    """

    position: int = 0
    tokens: int = 0
    sequences: bool = False
    start: int = 0
    loaded: dict[str, Any] | None = None

    def after(self, count: int, ends: list[bool] | None) -> Progress:
        """So many samples further, each of which ends its sequence or not; `None` where none does."""
        position, start = self.position + count, self.start + count
        if ends is not None and any(ends):
            return Progress(position, ends[::-1].index(True), True, start)
        return Progress(position, self.tokens + count, self.sequences, start)


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
        progress: How far it has come; a value, so that it changes all at once.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._stream: Any = None
        self._iterators: list[SampleIterator] = []
        self._source: Iterator[Block] | None = None
        self._size = 1
        self._held: Block | None = None
        self._reading = False
        self._mark: tuple[Any, int] = None, 0
        self._turn = 0
        self._due: tuple[Any, Progress | None] = None, None

    def __getstate__(self) -> dict[str, Any]:
        # An iterator cannot be copied: a copy knows the place, and takes it up when it is told to resume.
        place = self.progress._replace(loaded=self.state_dict())
        gone: dict[str, Any] = {
            "_source": None,
            "_held": None,
            "_stream": None,
            "_iterators": [],
            "_due": (None, None),
        }
        return vars(self) | gone | {"progress": place}

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        return self.progress.position

    def reports(
        self,
        step: Callable[[Sample], R],
        stream: Iterable[Sample],
        max_steps: int | None,
        resume: bool,
        pending: Callable[[], int],
    ) -> Iterator[R]:
        """Yield a report for each sample; `pending` says how many tokens still wait for their boundary."""
        stream = self._readable(stream)
        iterator = self._samples(stream, self._open(stream, resume))
        # What an interrupted step has not taken of a live feed goes back to it. Not where an evaluation goes
        # along, which has scored the sample already.
        if getattr(stream, "reads_ahead", True) or hasattr(stream, "put_back"):
            yield from self._one_by_one(lambda: next(iterator, END), step, max_steps, pending)
            return
        turn = self._turn
        self._source = map(alone, iterator)
        try:
            # Blocks of one sample.
            read = partial(self._peek_one, turn, iterator)
            yield from self._one_by_one(read, step, max_steps, pending)
        finally:
            self.close(turn)

    def _one_by_one(
        self,
        read: Callable[[], Sample],
        step: Callable[[Sample], R],
        max_steps: int | None,
        pending: Callable[[], int],
    ) -> Iterator[R]:
        done = 0
        while max_steps is None or done < max_steps:
            sample = read()
            if sample is END:
                self.end(pending())
                return
            report = self.counted(step, sample)
            done += 1
            yield report

    def counted(self, step: Callable[[Sample], R], sample: Sample) -> R:
        """Take one sample by `step`, which may move `progress` to `due` in one stroke with all else it changes."""
        before = self.progress
        if isinstance(sample, Label):
            after = before._replace(position=before.position + 1, start=before.start + 1)
        else:
            after = before.after(1, [bool(getattr(sample, "boundary", False))])
        self._due = sample, after
        try:
            report = step(sample)
        except Exception:
            if self.progress is before:
                # It was refused, and would be again: a live feed goes on behind it.
                self.give_back(passed=1)
            raise
        self._due = None, None
        if self.progress is before:
            self.progress = after
        return report

    def due(self, sample: Sample | Label) -> Progress | None:
        """The progress once `sample` has been taken; `None` where it is not of this stream."""
        expected, progress = self._due
        return progress if sample is expected else None

    def open_blocks(self, stream: Iterable[Sample], resume: bool) -> int:
        """Begin to read blocks of `stream`; answers the number of this turn."""
        stream = self._readable(stream)
        skip = self._open(stream, resume)
        size = lambda: self._size  # noqa: E731
        self._source = stream.blocks(size) if hasattr(stream, "blocks") else blocks_of(stream, size)
        while skip:
            block = self.peek(skip)
            if block is None:
                raise self._too_short(skip)
            self.progress = self.progress._replace(start=self.progress.start + block.count)
            skip -= block.count
        return self._turn

    def close(self, turn: int) -> None:
        """End the run that began at `turn`, unless another one has begun since."""
        if turn == self._turn:
            self.give_back()

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
        if self._held is None or self.progress.start == self._held.count:
            # Interrupted while the source is read, it is put back to the mark. Of what was read at one time, and
            # handed out in several blocks, the mark stands before the first.
            held = self._held
            if held is not None and held.more:
                mark = self._mark[0], held.offset + held.count
            else:
                self._settle()
                mark = self._stream_state(), 0
            self._size, self._mark, self._reading = size, mark, True
            self._held = None
            self.progress = self.progress._replace(start=0)
            self._held = next(self._source, None)
            self._reading = False
        if self._held is None:
            return None
        start = self.progress.start
        return self._held.part(start, min(start + size, self._held.count))

    def _peek_one(self, turn: int, iterator: Iterator[Sample]) -> Sample:
        """The sample to come of a live feed, read by itself; `END` at the end."""
        if turn != self._turn:
            return next(iterator, END)
        try:
            block = self.peek(1)
        except Exception:
            # It was refused, and would be again: a live feed goes on behind it.
            self._reading = False
            raise
        return END if block is None else block.sample(0)

    def give_back(self, passed: int = 0) -> None:
        """Let a live feed or an iterator have what was read of it and not taken: nobody else can give it again.

        It is put back to the mark, and what was taken since is read once more, for the sake of the streams around
        it that keep count. Interrupted, this begins anew the next time.

        Args:
            passed: How many samples are done with that no step has taken.
        """
        held, stream, (mark, skip) = self._held, self._stream, self._mark
        again = getattr(stream, "reads_ahead", True) and not getattr(stream, "once", False)
        if again or (held is None and not self._reading):
            return
        if not self._reading and held is not None:
            done = self.progress.start + passed
            skip += done
            if done == held.count and not held.more:
                if passed:
                    self._held = None
                return
        self._mark, self._reading, self._held = (mark, skip), True, None
        self.progress = self.progress._replace(start=0)
        getattr(stream, "put_back", stream.load_state_dict)(mark)
        self._source = stream.blocks(lambda: self._size)
        while skip:
            self._size = skip
            skip -= next(self._source).count
        self._settle()
        self._reading = False

    def end(self, waiting: int) -> None:
        """Raise if the stream ended within a sequence; `waiting` tokens are known to have waited for its end."""
        waiting = waiting or (self.progress.tokens if self.progress.sequences else 0)
        if waiting:
            counted = f"{waiting} token{'s' * (waiting > 1)}"
            raise StreamError(
                f"the stream ended {counted} into a sequence: mark the last token of each sequence "
                "with boundary=True"
            )

    def state_dict(self) -> dict[str, Any]:
        """Position, and the stream's own state where it has one, as JSON."""
        if self.progress.loaded is not None:
            return self.progress.loaded
        self.give_back()
        if isinstance(self._stream, SampleIterator):
            # Whatever it is resumed with is passed over up to the position.
            return {"position": self.position, "stream": None, "skip": 0}
        held, (mark, before) = self._held, self._mark
        if self._reading or (held is not None and (self.progress.start < held.count or held.more)):
            # A stream that keeps more than a place, such as scores, tells the rest as it is now.
            at = getattr(self._stream, "state_at", lambda mark: mark)
            skip = before + (0 if self._reading else self.progress.start)
            return {"position": self.position, "stream": at(mark), "skip": skip}
        return {"position": self.position, "stream": self._stream_state(), "skip": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position that `state_dict` told; the stream itself is put back when it is opened."""
        # A run that is going on keeps its stream, and what it has read ahead of it.
        self.progress = self.progress._replace(position=state["position"], loaded=dict(state))

    def saved(self, state: dict[str, Any]) -> None:
        """Say that what `state_dict` told is on the disk: a stream that would send it again need not."""
        saved = getattr(self._stream, "saved", None)
        if saved is not None and self.progress.loaded is None and state["stream"] is not None:
            saved(state["stream"])

    def _settle(self) -> None:
        settle = getattr(self._stream, "settle", None)
        if settle is not None:
            settle()

    def _stream_state(self) -> Any:
        own = getattr(self._stream, "state_dict", None)
        return own() if own is not None else None

    def _open(self, stream: Any, resume: bool) -> int:
        """Put the stream where reading goes on, and answer how many of its samples are to be passed over first."""
        self.give_back()
        self._turn += 1
        same = stream is self._stream
        known: dict[str, Any] = (
            self.state_dict() if same or self.progress.loaded is not None else {"stream": None, "skip": 0}
        )
        self._held, self._stream, self._reading = None, stream, False
        self.progress = Progress(self.position if resume else 0)
        if not resume or (same and isinstance(stream, SampleIterator)):
            return 0
        place = known["stream"] if hasattr(stream, "state_at") else _bare(known["stream"])
        if place is not None and hasattr(stream, "load_state_dict"):
            stream.load_state_dict(place)
            return int(known["skip"])
        return self.position

    def _samples(self, stream: Iterable[Sample], skip: int) -> Iterator[Sample]:
        """What is to come after `skip` samples, which are passed over now: a run of no steps may follow."""
        iterator = stream.each() if isinstance(stream, SampleIterator) else iter(stream)
        for passed in range(skip):
            if next(iterator, END) is END:
                raise self._too_short(skip - passed)
        return iterator

    def _readable(self, stream: Any) -> Any:
        """The stream; an iterator as one that can go back to where a block began, the same in every run."""
        if hasattr(stream, "load_state_dict") or not isinstance(stream, Iterator):
            return stream
        known = next((one for one in self._iterators if one.iterator is stream), None)
        if known is None:
            # Of those that were left, samples may wait here that nobody else can give.
            self._iterators = [one for one in self._iterators if one.waiting]
            known = SampleIterator(stream)
            self._iterators.append(known)
        return known

    def _too_short(self, missing: int) -> StreamError:
        return StreamError(
            f"the stream ended {missing} samples before the place where the checkpoint was saved, after "
            f"{self.position} samples: resume with the stream that the learner was reading"
        )


def _bare(place: Any) -> Any:
    """The state of the stream alone, where `hamlearn run` or `evaluate` saved metrics and records with it."""
    carried = isinstance(place, Mapping) and {"stream", "taken", "moment"} <= place.keys()
    return place["stream"] if carried else place
