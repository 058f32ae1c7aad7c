"""Reading a stream: one sample or one block at a time, counted, so that reading can be taken up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from hamlearn.errors import CheckpointError, StreamError
from hamlearn.sample import Label, Sample
from hamlearn.streams.base import END
from hamlearn.streams.blocks import Block, alone, gathered, stacked

EVERY = 64
"""Samples after which the state of a stream that is read one by one is taken again."""

R = TypeVar("R")


class ReadPosition(NamedTuple):
    """How far reading has come.

    Attributes:
        position: How many samples of the present stream have been taken.
        tokens: How many of them since the last boundary.
        sequences: Whether there has been a boundary.
        start: How many samples have been taken since the stream's state was looked at last.
        loaded: A place that was loaded and not yet taken up.
    """

    position: int = 0
    tokens: int = 0
    sequences: bool = False
    start: int = 0
    loaded: dict[str, Any] | None = None

    def after(self, count: int, ends: list[bool] | None) -> ReadPosition:
        """So many samples further, each of which ends its sequence or not; `None` where none does."""
        position, start = self.position + count, self.start + count
        if ends is not None and any(ends):
            return ReadPosition(position, ends[::-1].index(True), True, start)
        return ReadPosition(position, self.tokens + count, self.sequences, start)


@dataclass(slots=True)
class InHand:
    """Samples that were read of a stream.

    Attributes:
        blocks: Those that are left.
        mark: The state of the stream before all of them.
        count: How many were read.
        passed: How many were dropped from the blocks.
        one: The last of them, where it was read by itself.
        failed: What went wrong after them.
    """

    blocks: deque[Block]
    mark: Any
    count: int
    passed: int = 0
    one: Any = None
    failed: BaseException | None = None


class Reader:
    """Hands the samples of a stream to an engine and keeps count.

    An engine may read ahead by a block: `peek` shows what comes, `counted` says that a step has taken one sample.
    The place that is saved is always that of the steps: the state that the stream had before the samples in hand,
    and how many of these have been taken. Resumed, they are passed over.

    Samples of a stream that gives nothing twice that were read ahead and not taken wait here, and come first when
    the same object is run again next. They are lost when another stream is run, or the process ends.

    Attributes:
        progress: How far it has come; a value, so that it changes all at once.
        taking: The sample that a step is taking, and the progress after it.
    """

    def __init__(self) -> None:
        self.progress = ReadPosition()
        self._stream: Any = None
        self._iterator: Iterator[Any] = iter(())
        self._parts: Mapping[str, Any] = {}
        self._coming: Mapping[str, Any] = {}
        self._turn = 0
        self.taking: tuple[Any, ReadPosition | None] = None, None
        self._hold([])

    def _hold(self, blocks: Sequence[Block], mark: Any = None) -> None:
        """Have these samples in hand, of which none has been taken; `mark` is the stream's state before them."""
        self._hand = InHand(deque(blocks), mark, sum(block.count for block in blocks))
        self.progress = self.progress._replace(start=0)

    def __getstate__(self) -> dict[str, Any]:
        # An iterator cannot be copied: a copy has the place, and resumes there.
        return {"progress": self.progress._replace(loaded=self.state_dict())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.progress = state["progress"]

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        return self.progress.position

    def carry(self, parts: Mapping[str, Any]) -> None:
        """Save the states of `parts` (metrics, records) with the place in the stream that is opened next.

        Where that run resumes, they are put back with the place.
        """
        self._coming = parts

    def reports(
        self,
        step: Callable[[Sample], R],
        stream: Iterable[Sample],
        max_steps: int | None,
        resume: bool,
        pending: Callable[[], int],
    ) -> Iterator[R]:
        """Yield a report for each sample; `pending` says how many tokens still wait for their boundary."""
        turn, done = self._open(stream, resume), 0
        while max_steps is None or done < max_steps:
            self.check_turn(turn)
            sample = self._one_more()
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
        self.taking = sample, after
        try:
            report = step(sample)
        except Exception:
            if self.progress is before and not _replayable(self._stream):
                # It would raise again: a stream that gives nothing twice continues behind it.
                self.progress = before._replace(start=before.start + 1)
            raise
        self.taking = None, None
        if self.progress is before:
            self.progress = after
        return report

    def due(self, sample: Sample | Label) -> ReadPosition | None:
        """The progress once `sample` has been taken; `None` where it is not of this stream."""
        expected, progress = self.taking
        return progress if sample is expected else None

    def open_blocks(self, stream: Iterable[Sample], resume: bool) -> int:
        """Begin to read blocks of `stream`; returns the number of this turn."""
        return self._open(stream, resume)

    def close(self, turn: int) -> None:
        """End the run that began at `turn`, unless another one has begun since."""
        if turn == self._turn and _replayable(self._stream):
            # It can be read again.
            self._hand.blocks.clear()

    def check_turn(self, turn: int) -> None:
        """Raise where another run has begun since `turn`."""
        if turn != self._turn:
            raise StreamError(
                "this run was overtaken by a newer one of the same learner: finish one run before the next"
            )

    def peek(self, size: int) -> Block | None:
        """The samples to come, at most `size` of them; `None` at the end."""
        while (block := self._first()) is None:
            if not self._read(size):
                return None
        start = self.progress.start - self._hand.passed
        return block.part(start, min(start + size, block.count))

    def _first(self) -> Block | None:
        """The first block in hand with samples that have not been taken."""
        hand, start = self._hand, self.progress.start
        if hand.one is not None and start < hand.count:
            hand.blocks, hand.passed, hand.one = deque([alone(hand.one)]), hand.count - 1, None
        while hand.blocks and start - hand.passed >= hand.blocks[0].count:
            hand.passed += hand.blocks.popleft().count
        return hand.blocks[0] if hand.blocks else None

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
        """Where it stands, and the states of what goes along, as JSON."""
        if self.progress.loaded is not None:
            return self.progress.loaded
        return self._place() | {"parts": {name: part.state_dict() for name, part in self._parts.items()}}

    def _place(self) -> dict[str, Any]:
        """Position, the stream's own state where it has one, and how many samples after it were taken."""
        stream, taken, live = self._stream, self.progress.start, _live(self._stream)
        if not hasattr(stream, "state_dict"):
            # Whatever it is resumed with is passed over up to the position.
            return {"position": self.position, "stream": None, "skip": 0}
        if self._hand.mark is None or (taken == self._hand.count and (live or self._hand.one is not None)):
            return {"position": self.position, "stream": stream.state_dict(), "skip": 0}
        place = stream.state_at(self._hand.mark, taken) if hasattr(stream, "state_at") else self._hand.mark
        # What a feed has given does not come again, and nothing new may be passed over.
        return {"position": self.position, "stream": place, "skip": 0 if live else taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position that `state_dict` returned; the stream itself is put back when it is opened."""
        # A run that is not over keeps its stream, and what it has read ahead of it.
        self.progress = self.progress._replace(position=state["position"], loaded=dict(state))

    def saved(self, state: dict[str, Any]) -> None:
        """Say that what `state_dict` returned is on the disk: a stream that would send it again need not."""
        saved = getattr(self._stream, "saved", None)
        if saved is not None and self.progress.loaded is None and state["stream"] is not None:
            saved(state["stream"])

    def _open(self, stream: Any, resume: bool) -> int:
        """Begin to read a stream; returns the number of this turn."""
        same, goes_on = stream is self._stream, not _replayable(stream)
        known: dict[str, Any] = {"stream": None, "skip": 0, "parts": {}}
        if self.progress.loaded is not None:
            known = self.progress.loaded
        elif same:
            known |= self._place()
        self._parts, self._coming = self._coming, {}
        loads = resume and known["parts"].keys() == self._parts.keys()
        if resume and self._parts and self.position and not loads:
            raise CheckpointError(
                f"the learner stands at sample {self.position}, but has loaded nothing of "
                f"{' and '.join(self._parts)} to continue from. Load a checkpoint that was saved during the same "
                "kind of run, or start a new one."
            )
        self._turn += 1
        # Samples that were read ahead of a stream that gives nothing twice come first.
        start = self.progress.start if same and goes_on else 0
        if not (same and goes_on):
            self._hold([])
        self._stream, self.progress = stream, ReadPosition(self.position if resume else 0, start=start)
        skip = 0
        if resume and not (same and goes_on):
            skip = self.position
            if known["stream"] is not None and hasattr(stream, "load_state_dict"):
                stream.load_state_dict(known["stream"])
                skip = int(known["skip"])
        if not (resume and same and goes_on):
            self._iterator = iter(stream)
        self._pass_over(skip)
        for name, part in self._parts.items() if loads else ():
            part.load_state_dict(known["parts"][name])
        return self._turn

    def _pass_over(self, count: int) -> None:
        """Take samples without a step, in parts: without a state, these are all that were ever taken."""
        while count:
            block = self.peek(min(count, EVERY))
            if block is None:
                raise StreamError(
                    f"the stream ended {count} samples before the place where the checkpoint was saved, after "
                    f"{self.position} samples: resume with the stream that the learner was reading"
                )
            self.progress = self.progress._replace(start=self.progress.start + block.count)
            count -= block.count

    def _read(self, size: int) -> bool:
        """Read the next block; `False` at the end."""
        self._raise_failed()
        stream, failed = self._stream, None
        self._hold([], self._state())
        if hasattr(stream, "block"):
            read = stream.block(size)
        else:
            read, failed = gathered(self._iterator, size, not isinstance(stream, list | tuple))
            if len(read) < size:
                # It has ended, and is not asked again in this run.
                self._iterator = iter(())
        if read:
            self._hold([read] if isinstance(read, Block) else stacked(read), self._hand.mark)
            self._hand.failed = failed
        return bool(read)

    def _one_more(self) -> Any:
        """The next sample of a stream that is read one by one, or of those in hand; `END` at the end."""
        start = self.progress.start
        if start < self._hand.count:
            block = self.peek(1)
            return END if block is None else block.sample(0)
        self._raise_failed()
        # Samples of a feed cannot be passed over after a resume.
        if self._hand.count == 0 or start >= EVERY or _live(self._stream):
            self._hold([], self._state())
        sample = next(self._iterator, END)
        if sample is not END:
            self._hand.one, self._hand.count = sample, self._hand.count + 1
        return sample

    def _state(self) -> Any:
        """The state of the stream, or as much of it as `state_at` needs; `None` where it has none."""
        return self._stream.state_dict() if hasattr(self._stream, "state_dict") else None

    def _raise_failed(self) -> None:
        """Raise what went wrong after the samples in hand, once."""
        if self._hand.failed is not None:
            failed, self._hand.failed = self._hand.failed, None
            raise failed


def _live(stream: Any) -> bool:
    return bool(getattr(stream, "live", False))


def _replayable(stream: Any) -> bool:
    """Whether a new pass over it begins at the beginning."""
    return bool(getattr(stream, "replayable", not isinstance(stream, Iterator)))
