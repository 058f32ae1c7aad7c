"""Dictionaries to vectors, with features that appear and vanish, in bounded memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.streams.cells import NamePlaces, is_missing, name_of, shared
from hamlearn.streams.moments import Standard
from hamlearn.streams.units import logger

__all__ = ["Encoder", "Standard", "require_class", "require_features", "require_number"]

_LARGEST = 1e150
"""Of larger numbers the squares, which a standard deviation needs, would not be finite."""


def require_number(y: Any) -> float:
    """A target as a number; refuses one that would spoil the mean of all targets for good."""
    try:
        number = float(y)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if isinstance(y, str | bytes) or not abs(number) < _LARGEST:
        raise SampleError(
            f"y={y!r} is no finite number that could be learned: leave out what has no target, and look where it "
            "comes from"
        )
    return number


def require_features(x: Any) -> None:
    """Refuse what holds no features by name."""
    if not isinstance(x, Mapping):
        raise SampleError(f"x is a {type(x).__name__}: give the features by name, as in {{'size': 1.0}}")


def require_class(y: Any) -> None:
    """Refuse what says that there is no label, and what would be another class every time it comes."""
    if y is None:
        raise SampleError("y=None is no class, but says that there is no label: leave out what has none")
    if isinstance(y, Tensor) or not isinstance(y, Hashable) or y != y:
        raise SampleError(
            f"y={y!r} is no class, since it is not equal to itself when it comes again: give a text, a whole "
            "number or a truth value (y.item() of a tensor), and leave out what has no label"
        )


class Encoder:
    """Gives each feature a place in a vector when it is first learned from, and standardizes numbers.

    A text becomes a feature of its own, present or not; so does a value that is missing (`None`, NaN, or a text
    that a table would take for nothing). A feature that is not there, or was never learned from, counts as its
    mean, which is 0. When all places are taken, further features share them.

    Args:
        capacity: NamePlaces.

    Example:
        >>> encoder = Encoder(4)
        >>> for x in ({"size": 1.0, "kind": "red"}, {"size": 3.0, "kind": "blue"}, {"size": None}):
        ...     encoder.learn(x)
        >>> encoder.encode({"size": 3.0, "kind": "blue"})
        [1.0, 0.0, 1.0, 0.0]
        >>> encoder.encode({"size": None})
        [0.0, 0.0, 0.0, 1.0]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._places = NamePlaces(capacity)
        self._scales: dict[Hashable, Standard] = {}

    @property
    def used(self) -> int:
        """NamePlaces that are taken."""
        return len(self._places)

    def learn(self, x: Mapping[Any, Any]) -> None:
        """Count the features of `x` in."""
        # Sorted, so that the order in which a dictionary was filled has no say.
        for name, value, is_number in sorted(_features(x), key=lambda feature: repr(feature[0])):
            placed = self._places.find(name) is not None
            if is_number and (placed or name in self._scales or len(self._scales) < 16 * self.capacity):
                self._scales.setdefault(name, Standard()).update(value)

    def encode(self, x: Mapping[Any, Any]) -> list[float]:
        """`x` as a vector; nothing moves."""
        out = [0.0] * self.capacity
        for name, value, is_number in _features(x):
            place = self._places.index.get(name)
            if place is None:
                if len(self._places.index) < self.capacity:
                    continue
                place = shared(name, self.capacity)
            if is_number:
                scale = self._scales.get(name)
                value = 0.0 if scale is None else scale.apply(value)
            out[place] += value
        return out


@functools.lru_cache(maxsize=1024)
def _warn_once(name: str, kind: str) -> None:
    """Say that a feature is left out; the cache keeps it from being said again."""
    logger.warning(
        "the feature %s is a %s, which is neither a number nor a text, and is left out. Give time stamps by the "
        "keyword t, and lists as one feature for each number",
        name,
        kind,
    )


def _features(x: Mapping[Any, Any]) -> list[tuple[Hashable, float, bool]]:
    require_features(x)
    features: list[tuple[Hashable, float, bool]] = []
    for name, value in x.items():
        if is_missing(value):
            features.append(((name, None), 1.0, False))
            continue
        if isinstance(value, str):
            features.append(((name, name_of(value)), 1.0, False))
            continue
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            _warn_once(repr(name)[:80], type(value).__name__)
            continue
        if abs(number) < _LARGEST:
            features.append((name, number, True))
    return features
