"""Streams over torch datasets: batches, seeded shuffles, many epochs or no end at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block, is_dense
from hamlearn.streams.values import Spec, TensorSpec, mix_seed, to_sample, tree_map


def from_dataset(
    dataset: Any,
    batch_size: int | None = 1,
    shuffle: bool | int = False,
    epochs: int | None = 1,
    seed: int = 0,
    drop_last: bool = False,
) -> Stream:
    """A stream of the items of a map-style or iterable torch dataset, batch by batch.

    Args:
        dataset: Anything with `__getitem__` and `__len__`, or an iterable dataset. Items are pairs
            (u, target) or inputs alone; without batches they may be `Sample`s too.
        batch_size: Items in one sample, along a new leading dimension; `None` adds no such dimension.
        shuffle: Whether each epoch goes through the data in a new order, drawn from `seed` and the
            number of the epoch. An iterable dataset takes the size of its shuffle buffer instead.
        epochs: Passes over the data; `None` never ends.
        seed: Of the shuffles.
        drop_last: Whether a last, smaller batch of an epoch is left out.

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
    if epochs is not None and epochs < 1:
        raise ConfigError(f"epochs={epochs} makes an empty stream. Give 1 or more, or None for an endless stream.")
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        if len(dataset) == 0:
            raise ConfigError("the dataset has no items. Give one with at least one item.")
        if drop_last and batch_size is not None and len(dataset) < batch_size:
            raise ConfigError(
                f"batch_size={batch_size} with drop_last leaves nothing of a dataset of {len(dataset)} "
                "items. "
                "Lower batch_size, or keep the last batch."
            )
    elif not isinstance(dataset, Iterable):
        raise ConfigError(f"dataset must have __getitem__ and __len__, or __iter__, got {type(dataset).__name__}.")
    elif shuffle is True:
        raise ConfigError(
            "shuffle=True needs to know all items, and an iterable dataset gives them one by one. "
            "Give the size of a shuffle buffer instead, for example shuffle=1000."
        )
    return DatasetStream(dataset, batch_size, shuffle, epochs, seed, drop_last)


class DatasetStream(Stream):
    """What `from_dataset` returns."""

    _epoch = _n = 0
    _moves = ("_epoch", "_n")

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        shuffle: bool | int,
        epochs: int | None,
        seed: int,
        drop_last: bool,
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._epochs = epochs
        self._seed = seed
        self._drop_last = drop_last
        self._map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        self._seen: Sample | None = None
        self._shuffled = -1, torch.empty(0)

    @property
    def spec(self) -> Spec:
        """As the first batch looks; for an iterable dataset, unknown before the first sample."""
        if self._seen is None and self._map_style:
            # To look must not draw random numbers that a transform would draw later.
            with torch.random.fork_rng(devices=[]):
                self._seen = self._sample([self._dataset[0]] * (self._batch_size or 1))
        if self._seen is None:
            return Spec(None, None, self._length())
        spec = Spec.of(self._seen, self._length())
        size = self._batch_size
        if size is None or self._drop_last or (self._map_style and len(self._dataset) % size == 0):
            return spec
        return Spec(tree_map(any_batch, spec.u), tree_map(any_batch, spec.target), spec.length)

    def _length(self) -> int | float | None:
        if self._epochs is None:
            return math.inf
        return self._per_epoch() * self._epochs if self._map_style else None

    def _per_epoch(self) -> int:
        n, size = len(self._dataset), self._batch_size or 1
        return n // size if self._drop_last else -(-n // size)

    def _config(self) -> dict[str, Any]:
        return {
            "items": len(self._dataset) if self._map_style else None,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
        }

    def _samples(self) -> Iterator[Sample]:
        while self._epochs is None or self._epoch < self._epochs:
            before = self._n
            for batch in self._batches(self._n):
                self._n += 1
                yield self._remember(self._sample(batch))
            if self._n == 0 and before == 0:
                raise StreamError(
                    f"the iterable dataset gave nothing in epoch {self._epoch}. An iterator can be gone "
                    "through "
                    "once only: give a dataset whose __iter__ begins again, or epochs=1."
                )
            self._epoch, self._n = self._epoch + 1, 0

    def _block(self, n: int) -> Block | None:
        # Rows of tensors in memory: a block is one indexing, not one collation per sample.
        tensors = self._columns()
        if tensors is None:
            return None
        if self._n == self._per_epoch():
            self._epoch, self._n = self._epoch + 1, 0
        if self._epoch == self._epochs:
            return None
        batch, start = self._batch_size or 1, self._n
        stop = min(start + n, self._per_epoch())
        order = self._order()
        rows = slice(start * batch, stop * batch) if order is None else order[start * batch : stop * batch]
        parts = [column[rows] for column in tensors]
        if self._batch_size is not None:
            parts = [part.unflatten(0, (stop - start, batch)) for part in parts]
        self._n = stop
        return Block(stop - start, parts[:1], None, parts[1:], None)

    def _columns(self) -> tuple[torch.Tensor, ...] | None:
        """Input and target as whole tensors; `None` where items are made in another way."""
        tensors = _tensors(self._dataset)
        whole = self._drop_last or not self._map_style or len(self._dataset) % (self._batch_size or 1) == 0
        # Without batches, an item of a dataset of one tensor is a tuple of one.
        alone = self._batch_size is None and type(self._dataset) is TensorDataset and len(tensors) == 1
        return tensors if 1 <= len(tensors) <= 2 and whole and not alone else None

    def _order(self) -> torch.Tensor | None:
        """The order of the items in this epoch; `None`: as they stand."""
        if not self._shuffle:
            return None
        if self._shuffled[0] != self._epoch:
            self._shuffled = self._epoch, torch.randperm(len(self._dataset), generator=self._generator())
        return self._shuffled[1]

    def _batches(self, skip: int) -> Iterator[list[Any]]:
        size = self._batch_size or 1
        if self._map_style:
            found = self._order()
            order: Any = range(len(self._dataset)) if found is None else found
            for k in range(skip, self._per_epoch()):
                yield [self._dataset[int(i)] for i in order[k * size : (k + 1) * size]]
            return
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        batch: list[Any] = []
        for item in self._mixed(self._dataset):
            batch.append(item)
            if len(batch) == size:
                if skip == 0:
                    yield batch
                skip = max(skip - 1, 0)
                batch = []
        if batch and not self._drop_last and skip == 0:
            yield batch

    def _mixed(self, items: Iterable[Any]) -> Iterator[Any]:
        if not self._shuffle:
            yield from items
            return
        generator = self._generator()
        held: list[Any] = []
        for item in items:
            if len(held) < self._shuffle:
                held.append(item)
                continue
            k = int(torch.randint(len(held), (), generator=generator))
            yield held[k]
            held[k] = item
        for k in torch.randperm(len(held), generator=generator):
            yield held[int(k)]

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(mix_seed(self._seed, self._epoch))

    def _sample(self, batch: list[Any]) -> Sample:
        if self._batch_size is None:
            return to_sample(batch[0])
        if isinstance(batch[0], Sample):
            raise SampleError(
                f"batch_size={self._batch_size} cannot put Samples together, each with a time step of its "
                "own. "
                "Use batch_size=None, or a dataset of pairs (u, target)."
            )
        item = default_collate(batch)
        if isinstance(item, list | tuple) and len(item) == 2:
            return Sample(item[0], item[1])
        if isinstance(item, list | tuple) and len(item) == 1:
            return Sample(item[0])
        return Sample(item)

    def _remember(self, sample: Sample) -> Sample:
        if self._seen is None:
            self._seen = sample
        return sample


def _tensors(dataset: Any) -> tuple[torch.Tensor, ...]:
    """The tensors whose rows are the items; none where the items are made in another way."""
    tensors: tuple[torch.Tensor, ...] = ()
    if type(dataset) is torch.Tensor:
        tensors = (dataset,)
    elif type(dataset) is TensorDataset:
        tensors = dataset.tensors
    return tensors if all(map(is_dense, tensors)) else ()


def any_batch(spec: TensorSpec) -> TensorSpec:
    """The same with a first axis of any size."""
    return TensorSpec((None, *spec.shape[1:]), spec.dtype)
