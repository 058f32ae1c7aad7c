"""River's data sets as streams."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Sample
from hamlearn.streams import Stream, TensorSpec
from hamlearn.streams.clock import Clock
from hamlearn.streams.encode import Categories, Columns, Missing, declare
from hamlearn.streams.fields import is_missing, number
from hamlearn.streams.units import FIRST, Unit, unit_or_auto
from hamlearn.streams.values import Spec, shown


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
        missing: What a feature that is missing gets, as in `hamlearn.streams.csv`.
        bad: What a bad sample gets (a feature that is no number, an unknown category, a target that is missing,
            not finite or no class where others are, time that does not move forward): `"raise"` an error that
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
    if dtype is None:
        dtype = torch.get_default_dtype()
    if bad not in ("raise", "skip"):
        raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
    return RiverStream(dataset, unit_or_auto(unit), dtype, (categories, hashed, missing), bad, ties)


class RiverStream(Stream):
    """What `from_river` returns.

    Attributes:
        classes: The classes of the target in order; `None` where it is a number.
        skipped: Samples that were left out.
    """

    _n = skipped = 0
    _moves = ("_n", "skipped")

    def __init__(
        self,
        dataset: Iterable[tuple[Mapping[str, Any], Any]],
        unit: float | None,
        dtype: torch.dtype,
        declared: tuple[Categories | None, Mapping[str, int] | None, Missing],
        bad: str,
        ties: float | None,
    ) -> None:
        self._bad = bad
        self._dataset = list(dataset) if isinstance(dataset, Iterator) else dataset
        self._dtype, self._clock = dtype, Clock(unit, None, ties)
        self._largest = torch.finfo(dtype).max if dtype.is_floating_point else math.inf
        labels: set[str | bool] = set()
        self._length, first = 0, None
        for x, y in self._dataset:
            first = x if first is None else first
            self._length += 1
            if (label := _label(y)) is not None:
                labels.add(label)
        if first is None:
            raise ConfigError("the data set is empty. Give one with at least one sample.")
        self.classes = _in_order(labels)
        self._names = [name for name, value in first.items() if not isinstance(value, datetime)]
        self._time = next((name for name, value in first.items() if isinstance(value, datetime)), None)
        self._columns: Columns = declare(self._names, *declared, self._largest)
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors of the features."""
        target = TensorSpec((1,), self._dtype) if self.classes is None else TensorSpec((), torch.int64)
        length = None if self._columns.skips or self._bad == "skip" else self._length
        return Spec(TensorSpec((len(self._columns.numbers),), self._dtype), target, length)

    @property
    def numbers(self) -> list[bool]:
        """Which entries of the input are measured, rather than 0 or 1 for a category or a missing feature."""
        return self._columns.numbers

    @property
    def entries(self) -> list[str]:
        """Names of the entries of the input."""
        return self._columns.entries

    def _rewind(self) -> None:
        super()._rewind()
        self._clock.last = None
        self._columns.forget()

    def _config(self) -> dict[str, Any]:
        width = len(self._columns.numbers)
        return {"features": self._names, "length": self._length, "width": width, "ties": self._clock.ties}

    def _cursor(self) -> dict[str, Any]:
        columns = self._columns.state()
        return {**super()._cursor(), "columns": columns, **self._clock.state()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._columns.load(cursor["columns"])
        self._clock.load_state(cursor)

    def _samples(self) -> Iterator[Sample]:
        start = self._n
        if self._time is not None:
            self._clock.find(x[self._time] for x, _ in islice(self._dataset, FIRST + 1))
        for k, (x, y) in enumerate(self._dataset):
            if k < start:
                continue
            try:
                sample = self._sample(x, y, k)
            except SampleError:
                if self._bad == "raise":
                    raise
                sample = None
            self._n = k + 1
            if sample is None:
                self.skipped += 1
                continue
            yield sample

    def _sample(self, x: Mapping[str, Any], y: Any, k: int) -> Sample | None:
        values = self._columns.read([x.get(name) for name in self._names], f"sample {k}")
        if values is None:
            return None
        target, tau = self._target(y, k), None
        if self._time is not None:
            tau, _ = self._clock.advance(x[self._time], f"sample {k}", skip=False, option="bad")
        return Sample(torch.tensor(self._columns.write(values), dtype=self._dtype), target, tau)

    def _target(self, y: Any, k: int) -> torch.Tensor:
        if self.classes is not None and (label := _label(y)) is not None:
            return torch.tensor(self.classes.index(label))
        if is_missing(y):
            raise SampleError(f'sample {k} has no target. Leave such samples out with bad="skip".')
        if self.classes is not None:
            raise SampleError(
                f"sample {k} has the target {shown(y)}, which is neither a text nor a truth value, and others are "
                f'classes: {shown(self.classes)}. Make it one of them, or leave such samples out with bad="skip".'
            )
        return torch.tensor([number(y, "target", f"sample {k}", self._largest)], dtype=self._dtype)


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
