"""Streams around other streams: what they pass on, and transforms of one sample or one block at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from hamlearn.sample import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, gathered, single
from hamlearn.streams.values import Spec


class Wrapper(Stream):
    """A stream around one other stream, or several, whose states are part of its own.

    `_samples` reads the stream inside by `self.inner._next()`: its pass has begun with that of the wrapper.

    Attributes:
        inner: The stream inside, or the first of them.
        passes_inputs: Whether its inputs are those of the stream inside.
    """

    passes_inputs = False

    def __init__(self, *inners: Stream) -> None:
        self.inner, self._inners = inners[0], inners

    @property
    def spec(self) -> Spec:
        """As the stream inside."""
        return self.inner.spec

    @property
    def live(self) -> bool:
        """Whether a stream inside is."""
        return any(inner.live for inner in self._inners)

    @property
    def replayable(self) -> bool:
        """Whether all streams inside are."""
        return all(inner.replayable for inner in self._inners)

    @property
    def numbers(self) -> list[bool] | None:
        """As in the stream inside; `None` where several do not agree."""
        first, *others = (inner.numbers for inner in self._inners)
        return first if all(other == first for other in others) else None

    @property
    def save_within(self) -> int | None:
        """The least that any stream inside asks for."""
        return min((n for inner in self._inners if (n := inner.save_within) is not None), default=None)

    @property
    def dropped(self) -> int:
        """Samples that live feeds inside have dropped."""
        return sum(int(getattr(inner, "dropped", 0)) for inner in self._inners)

    @property
    def bad(self) -> int:
        """Messages that live feeds inside have left out."""
        return sum(int(getattr(inner, "bad", 0)) for inner in self._inners)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Pass it on."""
        for inner, place in zip(self._inners, state["cursor"]["inner"], strict=True):
            inner.saved(place)

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """Its own part as it was at the mark, and the place of the stream inside.

        Of several streams it is not known which of them the samples came from: they are passed over.
        """
        cursor = mark["cursor"]
        if len(self._inners) > 1:
            return mark
        return mark | {"cursor": cursor | {"inner": [self.inner.state_at(cursor["inner"][0], taken)]}}

    def encode(self, row: Mapping[str, Any]) -> Tensor:
        """As the stream inside, where inputs are passed on as they are."""
        return self.inner.encode(row) if self.passes_inputs else super().encode(row)

    def unscale(self, y: Tensor) -> Tensor:
        """As the stream inside."""
        return self.inner.unscale(y)

    def close(self) -> None:
        """Close the streams inside that can be closed."""
        for inner in self._inners:
            getattr(inner, "close", _nothing)()

    def finish(self) -> None:
        """Let live feeds inside stop reading; what has arrived is still handed out."""
        for inner in self._inners:
            getattr(inner, "finish", _nothing)()

    def _begin(self) -> None:
        super()._begin()
        for inner in self._inners:
            inner._begin()

    def _cursor(self) -> dict[str, Any]:
        return {**super()._cursor(), "inner": [inner.state_dict() for inner in self._inners]}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        for inner, state in zip(self._inners, cursor["inner"], strict=True):
            inner.load_state_dict(state)


def _nothing() -> None:
    """What streams without resources do at the end."""


class Transform(Wrapper):
    """A stream whose samples are those of the stream inside, changed a block at a time.

    `change` is a function of a block and of the attributes in `_moves`, the same however blocks are cut. Labels
    pass by.
    """

    _reuses = False

    def __init__(self, inner: Stream) -> None:
        super().__init__(inner)
        # Samples of the stream inside that were read and not changed yet, since one was to be looked at alone.
        self._left: deque[Any] = deque()

    def change(self, block: Block) -> Block | None:
        """What becomes of a block of samples.

        `None` says that its samples are to be changed one by one, and nothing has changed; of a single sample,
        that it is left out.
        """
        return None

    def sample(self, sample: Sample) -> Sample | None:
        """What becomes of a sample that comes by itself; `None`: it is left out."""
        made = self.change(single(sample))
        return None if made is None else replace(made.sample(0), id=sample.id)

    def label(self, label: Label) -> Label:
        """What becomes of a label."""
        return label

    def _block(self, n: int) -> Block | list[Any] | None:
        taken: list[Any] = []
        while not taken:
            if not self._left:
                read = self.inner.block(n)
                if read is None:
                    return None
                made = self.change(read) if isinstance(read, Block) and read.u is not None else None
                if made is not None:
                    return made
                self._left.extend(read.each() if isinstance(read, Block) else read)
            taken, self._error = gathered(self._changed(), len(self._left), self._reuses)
        return taken

    def _begin(self) -> None:
        if self.replayable or self._resumed:
            self._left.clear()
        super()._begin()

    def _changed(self) -> Iterator[Any]:
        """What becomes of the samples that were read; one that raises is passed over."""
        while self._left:
            sample = self._left.popleft()
            made = self.label(sample) if isinstance(sample, Label) else self.sample(sample)
            if made is not None:
                yield made
