"""Whether the columns of a table are of a size that networks learn from."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice

import torch

from hamlearn.errors import HamlearnError
from hamlearn.sample import Sample
from hamlearn.streams.table import TableStream

FIRST, FEWEST = 100, 10
"""Rows that are looked at, and how many there must be."""
FAR = 5.0
"""A mean or a deviation beyond this is told of."""

logger = logging.getLogger("hamlearn")


def tell_scale(stream: TableStream) -> None:
    """Say which column is furthest from 0 ± 1 in the first rows, if one is far from it, and what helps.

    The stream begins anew afterwards, as for every pass.
    """
    rows = []
    # Whatever is wrong with a row is said when it is learned from.
    with suppress(HamlearnError):
        rows = [sample.u.double() for sample in islice(stream, FIRST) if isinstance(sample, Sample)]
    if len(rows) < FEWEST:
        return
    u = torch.stack(rows)
    sizes = torch.maximum(u.mean(0).abs(), u.std(0)) * torch.tensor(stream.numbers)
    entry = int(sizes.argmax())
    if sizes[entry] > FAR:
        logger.warning(
            "the column %r has a mean of %.3g and a deviation of %.3g in the first %d rows, and networks learn "
            "best from inputs of about 0 ± 1. Say stream.standardize = true, or false to leave it so",
            stream.entries[entry],
            u[:, entry].mean().item(),
            u[:, entry].std().item(),
            len(rows),
        )
