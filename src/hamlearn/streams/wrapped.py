"""Streams around one other stream: what they pass on, and transforms of one sample or one block at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hamlearn.sample import Label, Sample
from hamlearn.streams.base import END, Stream
from hamlearn.streams.blocks import Block, gathered
from hamlearn.streams.values import Spec


class Wrapper(Stream):
    """A stream around one other stream, whose state is part of its own.

    `_samples` reads the stream inside by `self.inner._next()`: its pass has begun with that of the wrapper.

    Attributes:
        passes_inputs: Whether its inputs are those of the stream inside.
    """

    passes_inputs = False

    def __init__(self, inner: Stream) -> None:
        self.inner = inner

    @property
    def spec(self) -> Spec:
        """As the stream inside."""
        return self.inner.spec

    @property
    def live(self) -> bool:
        """As the stream inside."""
        return self.inner.live

    @property
    def replayable(self) -> bool:
        """As the stream inside."""
        return self.inner.replayable

    @property
    def save_within(self) -> int | None:
        """As the stream inside."""
        return self.inner.save_within

    def saved(self, state: Mapping[str, Any]) -> None:
        """Pass it on."""
        self.inner.saved(state["cursor"]["inner"])

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """Its own part as it was at the mark, and the place of the stream inside."""
        cursor = mark["cursor"]
        return mark | {"cursor": cursor | {"inner": self.inner.state_at(cursor["inner"], taken)}}

    @property
    def numbers(self) -> list[bool] | None:
        """As in the stream inside."""
        return self.inner.numbers

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """As the stream inside, where inputs are passed on as they are."""
        return self.inner.encode(row) if self.passes_inputs else super().encode(row)

    def unscale(self, y: Tensor) -> Tensor:
        """As the stream inside."""
        return self.inner.unscale(y)

    @property
    def dropped(self) -> int:
        """Samples that a live feed inside has dropped; 0 where there is none."""
        return int(getattr(self.inner, "dropped", 0))

    @property
    def bad(self) -> int:
        """Messages that a live feed inside has left out; 0 where there is none."""
        return int(getattr(self.inner, "bad", 0))

    def close(self) -> None:
        """Close the stream inside, if it can be closed."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()

    def finish(self) -> None:
        """Let a live feed inside stop reading; what has arrived is still handed out."""
        finish = getattr(self.inner, "finish", None)
        if finish is not None:
            finish()

    def _begin(self) -> None:
        super()._begin()
        self.inner._begin()

    def _cursor(self) -> dict[str, Any]:
        return {**super()._cursor(), "inner": self.inner.state_dict()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self.inner.load_state_dict(cursor["inner"])


class Transform(Wrapper):
    """A stream whose samples are those of the stream inside, changed one by one or a block at a time.

    `sample` is a function of a sample and of the attributes in `_moves`; `whole` does the same to a block, with
    the same bits. Labels pass by.
    """

    _reuses = False

    def __init__(self, inner: Stream) -> None:
        super().__init__(inner)
        # Samples of a block of the stream inside that have not been changed yet.
        self._left: deque[Any] = deque()

    @abstractmethod
    def sample(self, sample: Sample) -> Sample | None:
        """What becomes of a sample; `None`: it is left out."""

    def label(self, label: Label) -> Label:
        """What becomes of a label."""
        return label

    def whole(self, block: Block) -> Block | None:
        """What becomes of a block; `None`, and nothing has changed, where its samples are to be looked at."""
        return None

    def block(self, n: int) -> Block | list[Any] | None:
        """A block of the stream inside, changed."""
        if self._turn == 0 or self._resumed:
            self._begin()
        while True:
            self._raise_held()
            if not self._left:
                read = self.inner.block(n)
                if read is None:
                    return None
                made = self.whole(read) if isinstance(read, Block) and read.u is not None else None
                if made is not None:
                    return made
                self._left.extend(read.each() if isinstance(read, Block) else read)
            taken, self._error = gathered(self._changed(), len(self._left), self._reuses)
            if taken:
                return taken

    def _begin(self) -> None:
        if self.replayable or self._resumed:
            self._left.clear()
        super()._begin()

    def _samples(self) -> Iterator[Any]:
        while True:
            yield from self._changed()
            sample = self.inner._next()
            if sample is END:
                return
            self._left.append(sample)

    def _changed(self) -> Iterator[Any]:
        """What becomes of the samples that were read; one that raises is passed over."""
        while self._left:
            sample = self._left.popleft()
            made = self.label(sample) if isinstance(sample, Label) else self.sample(sample)
            if made is not None:
                yield made
