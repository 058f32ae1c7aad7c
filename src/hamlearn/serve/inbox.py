"""What a served learner reads: the requests of one round, as blocks that an engine takes in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from hamlearn.sample import Label, Sample
from hamlearn.serve.work import Work
from hamlearn.streams import Spec, Stream
from hamlearn.streams.blocks import Block, alone


class Stretch(NamedTuple):
    """Some of the samples of one request, in a row.

    Attributes:
        work: The request.
        start: The first of them.
        stop: The first that is none of them.
        alone: Whether it is one that is taken by itself: a label, or a sample that waits for one.
        seen: Whether it is one that was taken before, and is not taken again.
    """

    work: Work
    start: int
    stop: int
    alone: bool = False
    seen: bool = False


class Inbox(Stream):
    """A stream that holds one round of requests at a time.

    Its state, which goes into the learner's checkpoint, is that of the journal: how many samples were taken, and
    which ids are known. The whole of it is told only while a checkpoint is written, since an engine asks for the
    state before every block.

    Args:
        spec: What a sample looks like.
        tell: Tells the state of the journal.
        recall: Takes a state up again.
    """

    def __init__(
        self, spec: Spec, tell: Callable[[], dict[str, Any]], recall: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._spec, self._tell, self._recall = spec, tell, recall
        self._round: list[Block] = []
        self._at = 0
        self.saving = False

    @property
    def spec(self) -> Spec:
        """As it was given; a server does not know when the last sample comes."""
        return self._spec

    def put(self, stretches: list[Stretch]) -> int:
        """Let these be read next, instead of all that was put before; answers how many they are."""
        self._round = list(_blocks(stretches))
        return sum(block.count for block in self._round)

    def _rewind(self) -> None:
        self._at = 0

    def _samples(self) -> Iterator[Any]:
        while (block := self._block(1)) is not None:
            yield from block.each()

    def _block(self, n: int) -> Block | None:
        if self._at == len(self._round):
            return None
        self._at += 1
        return self._round[self._at - 1]

    def _cursor(self) -> dict[str, Any]:
        return self._tell() if self.saving else {}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._recall(cursor)


def _blocks(stretches: list[Stretch]) -> Iterator[Block]:
    waiting: list[Stretch] = []
    for stretch in stretches:
        if stretch.alone:
            if waiting:
                yield _stacked(waiting)
            waiting = []
            yield alone(_event(stretch.work, stretch.start))
        else:
            waiting.append(stretch)
    if waiting:
        yield _stacked(waiting)


def _event(work: Work, index: int) -> Sample | Label:
    assert work.ids is not None
    id = work.ids[index]
    if work.labels:
        assert id is not None
        assert work.target is not None
        return Label(id, torch.tensor(work.target[index]))
    assert work.u is not None
    tau = None if work.tau is None else work.tau[index]
    ends = work.boundary is not None and work.boundary[index]
    return Sample(torch.tensor(work.u[index]), None, tau, ends, id)


def _stacked(stretches: list[Stretch]) -> Block:
    """One block of samples that are taken one after the other."""
    count = sum(stop - start for _, start, stop, *_ in stretches)
    inputs = [work.u[start:stop] for work, start, stop, *_ in stretches if work.u is not None]
    known: list[bool] = []
    for work, start, stop, *_ in stretches:
        known += [work.has_target(index) for index in range(start, stop)]
    return Block(
        count,
        [_joined(inputs)],
        None,
        [_joined(_targets(stretches))] if any(known) else [],
        None,
        None if all(known) or not any(known) else known,
        _listed(stretches, "tau", None),
        _listed(stretches, "boundary", False),
    )


def _targets(stretches: list[Stretch]) -> list[np.ndarray]:
    """Targets of all; zeros where a request has none."""
    like = next(work.target for work, *_ in stretches if work.target is not None)
    return [
        np.zeros((stop - start, *like.shape[1:]), like.dtype) if work.target is None else work.target[start:stop]
        for work, start, stop, *_ in stretches
    ]


def _joined(parts: list[np.ndarray]) -> torch.Tensor:
    # A copy in any case: what came as bytes cannot be written to, which PyTorch warns of.
    return torch.from_numpy(np.concatenate(parts))


def _listed(stretches: list[Stretch], name: str, nothing: Any) -> list[Any] | None:
    if all(getattr(work, name) is None for work, *_ in stretches):
        return None
    entries: list[Any] = []
    for work, start, stop, *_ in stretches:
        own = getattr(work, name)
        entries += [nothing] * (stop - start) if own is None else own[start:stop]
    return entries if any(entry not in (None, False) for entry in entries) else None
