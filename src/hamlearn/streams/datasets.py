"""Streams over torch datasets: batches, seeded shuffles, many epochs or no end at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.iterables import IterableStream
from hamlearn.streams.values import Spec, mix_seed, to_sample


def from_dataset(
    dataset: Any,
    batch_size: int | None = 1,
    shuffle: bool = False,
    epochs: int | None = 1,
    seed: int = 0,
) -> Stream:
    """A stream of the items of a map-style or iterable torch dataset, batch by batch.

    Args:
        dataset: Anything with `__getitem__` and `__len__`, or an iterable dataset. Items are pairs
            (u, target) or inputs alone; without batches they may be `Sample`s too.
        batch_size: Items in one sample, along a new leading dimension; `None` adds no such dimension.
        shuffle: Whether each epoch goes through the data in a new order, drawn from `seed` and the
            number of the epoch. An iterable dataset has to shuffle itself, in `__iter__`.
        epochs: Passes over the data; `None` never ends.
        seed: Of the shuffles.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]))
        >>> stream = from_dataset(data, shuffle=True, epochs=2)
        >>> print(stream.spec)
        u: float32[1, 2], target: int64[1], length: 6
        >>> [int(sample.target) for sample in stream] == [int(sample.target) for sample in stream]
        True
    """
    if batch_size is not None and batch_size < 1:
        raise ConfigError(
            f"batch_size={batch_size} holds no item. Give 1 or more, or None for no batch dimension."
        )
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        if len(dataset) == 0:
            raise ConfigError("the dataset has no items. Give one with at least one item.")
        return DatasetStream(dataset, batch_size, shuffle, epochs, seed)
    if not isinstance(dataset, Iterable):
        raise ConfigError(f"dataset must have __getitem__ and __len__, or __iter__, got {type(dataset).__name__}.")
    if shuffle:
        raise ConfigError(
            "shuffle=True needs to know all items, and an iterable dataset gives them one by one. "
            "Let its __iter__ shuffle them."
        )
    require_epochs(epochs)
    length = math.inf if epochs is None else None
    return IterableStream(lambda: _batches(dataset, batch_size, epochs), None, length, batch_size is not None)


def require_epochs(epochs: int | None) -> None:
    """Raise `ConfigError` if there is no epoch."""
    if epochs is not None and epochs < 1:
        raise ConfigError(f"epochs={epochs} makes an empty stream. Give 1 or more, or None for an endless stream.")


class EpochStream(Stream):
    """A stream of several passes over data, each in an order of its own that `seed` and its number give."""

    _epoch = 0

    def __init__(self, shuffle: bool, epochs: int | None, seed: int) -> None:
        require_epochs(epochs)
        self._shuffle, self._epochs, self._seed = shuffle, epochs, seed
        self._drawn: tuple[int, Any] = -1, None

    def _order(self, n: int) -> Any:
        """The order of `n` items in this epoch."""
        if not self._shuffle:
            return range(n)
        if self._drawn[0] != self._epoch:
            generator = torch.Generator().manual_seed(mix_seed(self._seed, self._epoch))
            self._drawn = self._epoch, torch.randperm(n, generator=generator)
        return self._drawn[1]


class DatasetStream(EpochStream):
    """Batches of a map-style dataset."""

    _n = 0
    _moves, _fixed = ("_epoch", "_n"), ("_items", "_batch_size", "_shuffle", "_seed")

    def __init__(self, dataset: Any, batch_size: int | None, shuffle: bool, epochs: int | None, seed: int) -> None:
        super().__init__(shuffle, epochs, seed)
        self._dataset, self._batch_size = dataset, batch_size
        self._seen: Sample | None = None

    @property
    def spec(self) -> Spec:
        """As the first batch looks; its size varies if the last batch of an epoch is smaller."""
        if self._seen is None:
            # To look must not draw random numbers that a transform would draw later.
            with torch.random.fork_rng(devices=[]):
                self._seen = _batch([self._dataset[0]] * (self._batch_size or 1), self._batch_size)
        length = math.inf if self._epochs is None else self._per_epoch * self._epochs
        spec = Spec.of(self._seen, length)
        return spec if self._items % (self._batch_size or 1) == 0 else spec.of_any_batch()

    @property
    def _items(self) -> int:
        return len(self._dataset)

    @property
    def _per_epoch(self) -> int:
        return -(-self._items // (self._batch_size or 1))

    def _samples(self) -> Iterator[Sample]:
        size = self._batch_size or 1
        while self._epochs is None or self._epoch < self._epochs:
            order = self._order(self._items)
            while self._n < self._per_epoch:
                self._n += 1
                rows = order[(self._n - 1) * size : self._n * size]
                yield _batch([self._dataset[int(row)] for row in rows], self._batch_size)
            self._epoch, self._n = self._epoch + 1, 0

    def _block(self, n: int) -> Block | None:
        # Rows of tensors in memory: a block is one indexing, not one collation per sample.
        tensors = self._columns()
        if tensors is None:
            return None
        if self._n == self._per_epoch:
            self._epoch, self._n = self._epoch + 1, 0
        if self._epoch == self._epochs:
            return None
        batch, start = self._batch_size or 1, self._n
        stop = min(start + n, self._per_epoch)
        rows: Any = slice(start * batch, stop * batch)
        if self._shuffle:
            rows = self._order(self._items)[rows]
        parts = [column[rows] for column in tensors]
        if self._batch_size is not None:
            parts = [part.unflatten(0, (stop - start, batch)) for part in parts]
        self._n = stop
        return Block(stop - start, parts[:1], None, parts[1:], None)

    def _columns(self) -> tuple[torch.Tensor, ...] | None:
        """Input and target as whole tensors; `None` where items are made in another way."""
        data = self._dataset
        tensors: tuple[torch.Tensor, ...] = ()
        if type(data) is torch.Tensor:
            tensors = (data,)
        elif type(data) is TensorDataset and (self._batch_size is not None or len(data.tensors) == 2):
            # Without batches, an item of a dataset of one tensor is a tuple of one.
            tensors = data.tensors
        whole = self._items % (self._batch_size or 1) == 0
        return tensors if whole and len(tensors) in (1, 2) and all(map(is_dense, tensors)) else None


def _batch(items: list[Any], size: int | None) -> Sample:
    """Items as one sample."""
    if size is None:
        return to_sample(items[0])
    if isinstance(items[0], Sample):
        raise SampleError(
            f"batch_size={size} cannot put Samples together, each with a time step of its own. "
            "Use batch_size=None, or a dataset of pairs (u, target)."
        )
    item = default_collate(items)
    return Sample(*item) if isinstance(item, list | tuple) and len(item) in (1, 2) else Sample(item)


def _batches(dataset: Any, size: int | None, epochs: int | None) -> Iterator[Sample]:
    """The batches of an iterable dataset."""
    for epoch in itertools.count() if epochs is None else range(epochs):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        items, some = iter(dataset), False
        while batch := list(itertools.islice(items, size or 1)):
            some = True
            yield _batch(batch, size)
        if not some:
            raise StreamError(
                f"the iterable dataset gave nothing in epoch {epoch}. An iterator can be gone through "
                "once only: give a dataset whose __iter__ begins again, or epochs=1."
            )
