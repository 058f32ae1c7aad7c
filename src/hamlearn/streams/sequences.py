"""Streams over sequences, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.datasets import EpochStream
from hamlearn.streams.values import Spec, to_tensors


def from_sequences(
    sequences: Sequence[Any],
    targets: Sequence[Any] | None = None,
    per: Literal["token", "sequence"] = "token",
    batch: bool = False,
    shuffle: bool = False,
    epochs: int | None = 1,
    seed: int = 0,
) -> Stream:
    """A stream of the tokens of sequences of any lengths; the last token of each is a `boundary`.

    Args:
        sequences: Each of shape (tokens, ...): a list of tensors or arrays, or anything with
            `__getitem__` and `__len__` that loads them when asked. A batch of equally long sequences is
            one sequence of shape (tokens, batch, ...).
        targets: One entry a sequence, `None` where there is no target.
        per: `"token"`: an entry holds one target for each token (`None` in a list: no target there);
            `"sequence"`: an entry is one target, given with the last token.
        batch: Whether each token and target gets a leading batch dimension of one.
        shuffle: Whether each epoch goes through the sequences in a new order, drawn from `seed`.
        epochs: Passes over the data; `None` never ends.
        seed: Of the shuffles.

    Example:
        >>> stream = from_sequences([torch.zeros(2, 3), torch.ones(1, 3)], [0, 1], per="sequence")
        >>> [(sample.target, sample.boundary) for sample in stream]
        [(None, False), (tensor(0), True), (tensor(1), True)]
    """
    if per not in ("token", "sequence"):
        raise ConfigError(f'per={per!r} is not known. Give "token" or "sequence".')
    if len(sequences) == 0:
        raise ConfigError("there are no sequences. Give at least one.")
    if targets is not None and len(targets) != len(sequences):
        raise ConfigError(
            f"there are {len(sequences)} sequences but {len(targets)} targets. Give one entry for each sequence."
        )
    return SequenceStream(sequences, targets, per, batch, shuffle, epochs, seed)


class SequenceStream(EpochStream):
    """What `from_sequences` returns."""

    _sequence = _token = 0
    _moves = ("_epoch", "_sequence", "_token")
    _fixed = ("_count", "_per", "_batch", "_shuffle", "_seed")

    def __init__(
        self,
        sequences: Sequence[Any],
        targets: Sequence[Any] | None,
        per: str,
        batch: bool,
        shuffle: bool,
        epochs: int | None,
        seed: int,
    ) -> None:
        super().__init__(shuffle, epochs, seed)
        self._sequences, self._targets, self._per, self._batch = sequences, targets, per, batch

    @property
    def spec(self) -> Spec:
        """As the first token with a target looks; the length is known once all sequences are tensors."""
        loaded = map(self._load, range(self._count))
        samples = (self._sample(*both, k) for both in loaded for k in range(len(both[0])))
        first = next(samples)
        if first.target is None and self._targets is not None:
            first = next((sample for sample in samples if sample.target is not None), first)
        length: int | float | None = None
        if self._epochs is None:
            length = math.inf
        elif isinstance(self._sequences, list | tuple | torch.Tensor):
            # Asking a lazy collection for all its sequences would load them all.
            length = sum(len(sequence) for sequence in self._sequences) * self._epochs
        return Spec.of(first, length)

    @property
    def _count(self) -> int:
        return len(self._sequences)

    def _samples(self) -> Iterator[Sample]:
        n = self._count
        while self._epochs is None or self._epoch < self._epochs:
            order = self._order(n)
            while self._sequence < n:
                tokens, targets = self._load(int(order[self._sequence]))
                while self._token < len(tokens):
                    self._token += 1
                    yield self._sample(tokens, targets, self._token - 1)
                self._sequence, self._token = self._sequence + 1, 0
            self._epoch, self._sequence = self._epoch + 1, 0

    def _load(self, i: int) -> tuple[Any, Any]:
        tokens = self._sequences[i]
        targets = None if self._targets is None else self._targets[i]
        if len(tokens) == 0:
            raise SampleError(f"sequence {i} is empty: it has no last token to be a boundary. Leave it out.")
        if self._per == "token" and targets is not None and len(targets) != len(tokens):
            raise SampleError(
                f"sequence {i} has {len(tokens)} tokens but {len(targets)} targets. Give one target a token "
                '(None where there is none), or one a sequence with per="sequence".'
            )
        return tokens, targets

    def _sample(self, tokens: Any, targets: Any, k: int) -> Sample:
        last = k == len(tokens) - 1
        target = None
        if targets is not None:
            if self._per == "token":
                target = to_tensors(targets[k])
            elif last:
                target = to_tensors(targets)
        u = to_tensors(tokens[k])
        if self._batch:
            u, target = u.unsqueeze(0), None if target is None else target.unsqueeze(0)
        return Sample(u, target, boundary=last)
