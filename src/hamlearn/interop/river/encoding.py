"""Dictionaries to vectors, with features that appear and vanish, in bounded memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping
from typing import Any


class Standard:
    """Mean and standard deviation of all values so far (Welford's recursion)."""

    __slots__ = ("mean", "n", "square")

    def __init__(self) -> None:
        self.n, self.mean, self.square = 0, 0.0, 0.0

    def update(self, value: float) -> None:
        """Count a value in."""
        self.n += 1
        off = value - self.mean
        self.mean += off / self.n
        self.square += off * (value - self.mean)

    @property
    def spread(self) -> float:
        """The standard deviation; 1 where there is none yet."""
        return math.sqrt(self.square / self.n) if self.square > 0 else 1.0

    def apply(self, value: float) -> float:
        """The value in standard deviations from the mean, at most 10 either way."""
        return max(-10.0, min(10.0, (value - self.mean) / self.spread))


class Encoder:
    """Gives each feature a place in a vector when it is first learned from, and standardizes numbers.

    A text becomes a feature of its own, present or not. A feature that is missing, or was never learned from,
    counts as its mean, which is 0. When all places are taken, further features share them.

    Args:
        capacity: Places.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._places: dict[Hashable, int] = {}
        self._scales: dict[Hashable, Standard] = {}

    @property
    def used(self) -> int:
        """Places that are taken."""
        return len(self._places)

    def learn(self, x: Mapping[Any, Any]) -> None:
        """Count the features of `x` in."""
        # Sorted, so that the order in which a dictionary was filled has no say.
        for name, value, is_number in sorted(_features(x), key=lambda feature: repr(feature[0])):
            if name not in self._places and len(self._places) < self.capacity:
                self._places[name] = len(self._places)
            if is_number and (
                name in self._places or name in self._scales or len(self._scales) < 16 * self.capacity
            ):
                self._scales.setdefault(name, Standard()).update(value)

    def encode(self, x: Mapping[Any, Any]) -> list[float]:
        """`x` as a vector; nothing moves."""
        out = [0.0] * self.capacity
        for name, value, is_number in _features(x):
            place = self._places.get(name)
            if place is None:
                if len(self._places) < self.capacity:
                    continue
                place = zlib.crc32(repr(name).encode()) % self.capacity
            if is_number:
                scale = self._scales.get(name)
                value = 0.0 if scale is None else scale.apply(value)
            out[place] += value
        return out


def _features(x: Mapping[Any, Any]) -> list[tuple[Hashable, float, bool]]:
    features: list[tuple[Hashable, float, bool]] = []
    for name, value in x.items():
        if isinstance(value, str):
            features.append(((name, value), 1.0, False))
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            # A date or an object says nothing as a number: time comes in by the keyword t.
            continue
        if math.isfinite(number):
            features.append((name, number, True))
    return features
