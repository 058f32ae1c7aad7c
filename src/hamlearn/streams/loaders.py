"""Streams over the batches of a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.sample import Sample
from hamlearn.streams.datasets import any_batch
from hamlearn.streams.iterables import IterableStream
from hamlearn.streams.values import Spec, shown, tree_map


class LoaderStream(IterableStream):
    """Batches of a `DataLoader`."""

    def __init__(self, loader: DataLoader[Any], u: str | None = None, target: str | None = None) -> None:
        self._loader = loader
        super().__init__(_Batches(loader, u, target), None, _batches(loader))

    @property
    def spec(self) -> Spec:
        """As the first batch looked, but for its size; to look ahead would draw one."""
        if self._seen is None:
            return Spec(None, None, self._length)
        spec = Spec.of(self._seen, self._length)
        return Spec(tree_map(any_batch, spec.u), tree_map(any_batch, spec.target), spec.length)

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        if not _keeps_order(self._loader):
            raise CheckpointError(
                f"the DataLoader draws a new order in every pass ({_sampler_of(self._loader)}), so that "
                "learned samples cannot be passed over. Use streams.from_dataset(loader.dataset, "
                "batch_size, shuffle=True, seed=0), which resumes; or draw the order yourself, "
                "streams.from_dataset(torch.utils.data.Subset(dataset, order))."
            )
        super()._seek(cursor)


def _sampler_of(loader: DataLoader[Any]) -> str:
    """The class of what draws the order of the items."""
    batched = loader.batch_sampler
    custom = batched is not None and type(batched) is not BatchSampler
    return type(batched if custom else loader.sampler).__name__


def _keeps_order(loader: DataLoader[Any]) -> bool:
    """Whether every pass gives the items in the same order, as far as the samplers of PyTorch can say."""
    if isinstance(loader.dataset, IterableDataset):
        return True
    batched, sampler = loader.batch_sampler, loader.sampler
    if batched is not None and type(batched) is not BatchSampler:
        return isinstance(batched, list | tuple)
    return type(sampler) in (SequentialSampler, DistributedSampler) or isinstance(sampler, list | tuple | range)


def _batches(loader: DataLoader[Any]) -> int | None:
    return None if isinstance(loader.dataset, IterableDataset) else len(loader)


class _Batches:
    """Batches as samples."""

    def __init__(self, loader: DataLoader[Any], u: str | None, target: str | None) -> None:
        self._loader, self._u, self._target = loader, u, target

    def __iter__(self) -> Iterator[Sample]:
        for batch in self._loader:
            yield self._sample(batch)

    def _sample(self, batch: Any) -> Sample:
        if isinstance(batch, Mapping):
            names = [name for name in batch if name != self._target]
            u = self._u or (names[0] if len(names) == 1 else None)
            if u not in batch or (self._target is not None and self._target not in batch):
                raise ConfigError(
                    f"the DataLoader gives batches of {shown(list(batch))}. Say which is the input and which "
                    "the target, "
                    'from_any(loader, u="...", target="...").'
                )
            return Sample(batch[u], None if self._target is None else batch[self._target])
        if isinstance(batch, tuple | list) and 1 <= len(batch) <= 2:
            return Sample(*batch)
        if isinstance(batch, torch.Tensor):
            return Sample(batch)
        raise ConfigError(
            f"the DataLoader gives a {type(batch).__name__} of {len(batch)} parts. Let its collate_fn give a "
            "tensor, a pair (u, target) or a mapping."
        )
