"""River's data sets as streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, shown
from hamlearn.streams.cells import is_missing
from hamlearn.streams.clock import Unit, logger
from hamlearn.streams.columns import Categories, Missing
from hamlearn.streams.encoder import TableSettings
from hamlearn.streams.rows import Row, RowSource
from hamlearn.streams.tables import TableStream


def from_river(
    dataset: Iterable[tuple[Mapping[str, Any], Any]],
    unit: Unit = "auto",
    dtype: torch.dtype | None = None,
    categories: Categories | None = None,
    hashed: Mapping[str, int] | None = None,
    missing: Missing = "raise",
    bad: Literal["raise", "skip"] = "raise",
    ties: float | None = None,
) -> RiverStream:
    """A stream over a River data set: pairs of a dictionary and a target.

    Features become a vector, in the order of the first dictionary; a datetime becomes the time step. A target
    that is a number becomes a vector of one; a text or a truth value, the index of its class (in `classes`).

    Args:
        dataset: Gone through once before the first sample, to know its classes and its length. An iterator, such
            as `take` of a data set returns, can be gone through only once: what it gives is kept in memory.
        unit: What counts as one unit of time: a number of seconds, or a `timedelta`. `"auto"`: the median of the
            first 32 gaps, which is logged, and kept with the stream's state.
        dtype: `None` is torch's default.
        categories: Features that are categories, as in `hamlearn.streams.csv`.
        hashed: Features of many categories, which share so many entries.
        missing: The value of a feature that is missing, as in `hamlearn.streams.csv`.
        bad: What a bad sample gets (a feature that is not a number, an unknown category, a target that is missing,
            not finite or not a class if others are, time that does not move forward): `"raise"` an error that
            names it, or `"skip"` it.
        ties: The time step, in units of time, of a sample with the time of the one before, as in
            `hamlearn.streams.csv`.

    Raises:
        ConfigError: The data set is empty, or an argument cannot be; or some targets are texts and some truth
            values.

    Example:
        >>> from datetime import timedelta
        >>> from river import datasets
        >>> stream = from_river(datasets.WaterFlow(), unit=timedelta(hours=1))
        >>> print(stream.spec)
        u: float32[0], target: float32[1], length: 1268
    """
    pairs = list(dataset) if isinstance(dataset, Iterator) else dataset
    labels: set[str | bool] = set()
    length = 0
    first: Mapping[str, Any] = {}
    for x, y in pairs:
        first = x if length == 0 else first
        length += 1
        if (label := _label(y)) is not None:
            labels.add(label)
    if length == 0:
        raise ConfigError("the data set is empty. Give one with at least one sample.")
    times = [name for name, value in first.items() if isinstance(value, datetime)]
    if len(times) > 1:
        logger.warning(
            "the features %s are times: the first is the time stamp, and the others are left out. Make numbers of "
            "them if they are to be inputs",
            ", ".join(map(repr, times)),
        )
    classes = _in_order(labels)
    target = "target"
    while target in first:
        target += "_"
    source = _Pairs(pairs, [*first, target], classes)
    source.length = length
    settings = TableSettings(
        u=[name for name in first if name not in times],
        target=target,
        time=times[0] if times else None,
        classes=classes,
        missing=missing,
        bad=bad,
        unit=unit,
        dtype=dtype,
        categories=categories,
        hashed=hashed,
        ties=ties,
    )
    return RiverStream(source, settings, classes)


class RiverStream(TableStream):
    """What `from_river` returns: a table whose rows are the features, with the target as one more column."""

    _needs_inputs = False

    def __init__(self, source: _Pairs, settings: TableSettings, classes: list[Any] | None) -> None:
        super().__init__(source, settings)
        self._classes = classes

    @property
    def classes(self) -> list[Any] | None:
        """The classes of the target in order, as the data set has them; `None` if it is a number."""
        return self._classes


class _Pairs(RowSource):
    """The pairs of a data set as rows."""

    def __init__(self, pairs: Any, names: list[Any], classes: list[Any] | None) -> None:
        super().__init__(pairs, self._to_features, "sample", names)
        self._target, self._classes = names[-1], classes

    def _to_features(self, pair: Any) -> Row:
        x, y = pair
        if _label(y) is None and is_missing(y):
            raise ValueError("has no target. Give it one")
        if self._classes is None or _label(y) is not None:
            return {**x, self._target: y}
        raise ValueError(
            f"has the target {shown(y)}, which is neither a text nor a truth value, and others are classes: "
            f"{shown(self._classes)}. Make it one of them"
        )


def _label(y: Any) -> str | bool | None:
    """A target that is a class; `None` for any other."""
    if isinstance(y, np.bool_):
        return bool(y)
    return y if isinstance(y, str | bool) else None


def _in_order(labels: set[str | bool]) -> list[Any] | None:
    texts = sorted(label for label in labels if isinstance(label, str))
    truths = sorted(label for label in labels if isinstance(label, bool))
    if texts and truths:
        raise ConfigError(
            f"some targets are texts, such as {shown(texts[0])}, and some are truth values, such as {truths[0]}, "
            "which have no order in common. Make texts of all of them, or truth values."
        )
    return texts or truths or None
