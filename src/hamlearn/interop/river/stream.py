"""River's data sets as streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.state import Sample
from hamlearn.streams import Stream, TensorSpec
from hamlearn.streams.clock import Clock
from hamlearn.streams.units import FIRST, Unit, unit_or_auto
from hamlearn.streams.values import Spec, shown


def from_river(
    dataset: Iterable[tuple[Mapping[str, Any], Any]],
    unit: Unit = "auto",
    dtype: torch.dtype | None = None,
) -> RiverStream:
    """A stream over a River data set: pairs of a dictionary and a target.

    Numbers become a vector, in the order of the first dictionary; a datetime becomes the time step. A target
    that is a number becomes a vector of one; a text or a truth value, the index of its class (in `classes`).

    Args:
        dataset: Gone through once before the first sample, to know its classes and its length.
        unit: What counts as one unit of time: a number of seconds, or a `timedelta`. `"auto"`: the median of the
            first 32 gaps, which is logged, and kept with the stream's state.
        dtype: `None` is torch's default.

    Example:
        >>> from datetime import timedelta
        >>> from river import datasets
        >>> stream = from_river(datasets.WaterFlow(), unit=timedelta(hours=1))
        >>> print(stream.spec)
        u: float32[0], target: float32[1], length: 1268
    """
    return RiverStream(dataset, unit_or_auto(unit), dtype or torch.get_default_dtype())


class RiverStream(Stream):
    """What `from_river` returns.

    Attributes:
        classes: The classes of the target in order; `None` where it is a number.
    """

    def __init__(
        self, dataset: Iterable[tuple[Mapping[str, Any], Any]], unit: float | None, dtype: torch.dtype
    ) -> None:
        self._dataset, self._dtype, self._clock = dataset, dtype, Clock(unit, None)
        labels, self._length, first = set(), 0, None
        for x, y in dataset:
            first = x if first is None else first
            self._length += 1
            if isinstance(y, str | bool):
                labels.add(y)
        if first is None:
            raise ConfigError("the data set is empty. Give one with at least one sample.")
        self.classes = sorted(labels) or None
        self._names = [name for name, value in first.items() if not isinstance(value, datetime)]
        self._time = next((name for name, value in first.items() if isinstance(value, datetime)), None)
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors of the features."""
        target = TensorSpec((1,), self._dtype) if self.classes is None else TensorSpec((), torch.int64)
        return Spec(TensorSpec((len(self._names),), self._dtype), target, self._length)

    def _rewind(self) -> None:
        self._n, self._clock.last = 0, None

    def _config(self) -> dict[str, Any]:
        return {"features": self._names, "length": self._length}

    def _cursor(self) -> dict[str, Any]:
        return {"n": self._n, **self._clock.state()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._n = int(cursor["n"])
        self._clock.load_state(cursor)

    def _samples(self) -> Iterator[Sample]:
        start = self._n
        if self._time is not None:
            self._clock.find(x[self._time] for x, _ in islice(self._dataset, FIRST + 1))
        for k, (x, y) in enumerate(self._dataset):
            if k < start:
                continue
            self._n = k + 1
            u = torch.tensor([_number(x.get(name), f"{name!r}", k) for name in self._names], dtype=self._dtype)
            if self.classes is None:
                target = torch.tensor([_number(y, "the target", k)], dtype=self._dtype)
            else:
                target = torch.tensor(self.classes.index(y))
            tau = None
            if self._time is not None:
                tau, _ = self._clock.advance(x[self._time], f"sample {k}", skip=False)
            yield Sample(u, target, tau)


def _number(value: Any, name: str, k: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SampleError(
            f"{name} of sample {k} is {shown(value)}, which is no number. Leave it out, or turn it into numbers, "
            "before the data set is made a stream."
        ) from error
