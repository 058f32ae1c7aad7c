"""Streams over the batches of a `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from hamlearn.errors import CheckpointError, ConfigError, shown
from hamlearn.sample import Sample
from hamlearn.streams.iterables import IterableStream


class LoaderStream(IterableStream):
    """Batches of a `DataLoader`."""

    def __init__(self, loader: DataLoader[Any], u: str | None = None, target: str | None = None) -> None:
        self._loader = loader
        length = None if isinstance(loader.dataset, IterableDataset) else len(loader)
        super().__init__(lambda: (_to_sample(batch, u, target) for batch in loader), None, length, batched=True)

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        if (drawn := _random_order(self._loader)) is not None:
            raise CheckpointError(
                f"the DataLoader draws a new order in every pass ({drawn}), so that learned samples cannot be "
                "passed over. Use streams.from_dataset(loader.dataset, batch_size, shuffle=True, seed=0), which "
                "resumes; or draw the order yourself, from_dataset(torch.utils.data.Subset(dataset, order))."
            )
        super()._seek(cursor)


def _random_order(loader: DataLoader[Any]) -> str | None:
    """The class of the sampler that draws an order, as far as the samplers of PyTorch can say; else `None`."""
    batched, sampler = loader.batch_sampler, loader.sampler
    drawn: Any = sampler if batched is None or type(batched) is BatchSampler else batched
    fixed = isinstance(drawn, (list, tuple, range, SequentialSampler, DistributedSampler))
    return None if fixed or isinstance(loader.dataset, IterableDataset) else type(drawn).__name__


def _to_sample(batch: Any, u: str | None, target: str | None) -> Sample:
    if isinstance(batch, Mapping):
        names = [name for name in batch if name != target]
        u = u or (names[0] if len(names) == 1 else None)
        if u not in batch or (target is not None and target not in batch):
            raise ConfigError(
                f"the DataLoader gives batches of {shown(list(batch))}. Say which is the input and which the "
                'target, from_any(loader, u="...", target="...").'
            )
        return Sample(batch[u], None if target is None else batch[target])
    if isinstance(batch, tuple | list) and 1 <= len(batch) <= 2:
        return Sample(*batch)
    if isinstance(batch, torch.Tensor):
        return Sample(batch)
    raise ConfigError(
        f"the DataLoader gives a {type(batch).__name__} of {len(batch)} parts. Let its collate_fn give a "
        "tensor, a pair (u, target) or a mapping."
    )
