"""Bounds on what one sample may do: numbers far beyond the scale of those before are clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

WINDOW = 1024
"""Samples after which the largest numbers of the window before the present one are forgotten."""


class ScaleBound:
    """Clips each entry of a vector to a multiple of the largest magnitude seen in the last 1,024 to 2,048 samples.

    The scale is at least 1, so that an entry which was 0 for a long time is not held at 0. A clipped number raises
    the scale by a factor of 2 only: a single outlier changes little, and a lasting change of scale is followed
    within some ten samples. Maxima do not depend on how samples are split into requests, not even in the last bit.

    Args:
        width: Entries of a vector.
        factor: How many times the scale an entry may have; 0 turns clipping off.

    Example:
        >>> bound = ScaleBound(1, factor=10.0)
        >>> bound.clip(np.array([[0.5], [1e12], [2.0]]), first=0)
        (array([[ 0.5],
               [10. ],
               [ 2. ]]), [1])
    """

    def __init__(self, width: int, factor: float) -> None:
        self._factor = factor
        self._now, self._before = np.ones(width), np.ones(width)

    def clip(self, rows: np.ndarray, first: int) -> tuple[np.ndarray, list[int]]:
        """Clip rows that are samples `first`, `first` + 1 and so on; also returns which rows were changed."""
        if not self._factor:
            return rows, []
        clipped: list[int] = []
        start = 0
        while start < len(rows):
            place = (first + start) % WINDOW
            if place == 0:
                self._before, self._now = self._now, np.ones_like(self._now)
            stop = min(len(rows), start + WINDOW - place)
            sizes = np.abs(rows[start:stop])
            largest = sizes.max(axis=0) if len(sizes) > 1 else sizes[0]
            if (largest <= self._now).all():
                pass
            elif (largest <= self._factor * np.maximum(self._now, self._before)).all():
                self._now = np.maximum(self._now, largest)
            else:
                # Rare: one by one, since each row changes the bound of the next.
                rows = rows.copy()
                clipped += [k for k in range(start, stop) if self._clip_row(rows[k])]
            start = stop
        return rows, clipped

    def _clip_row(self, row: np.ndarray) -> bool:
        scale = np.maximum(self._now, self._before)
        limit = (self._factor * scale).astype(row.dtype)
        beyond = np.abs(row) > limit
        self._now = np.maximum(self._now, np.where(beyond, 2 * scale, np.abs(row)))
        np.clip(row, -limit, limit, out=row)
        return bool(beyond.any())

    def state_dict(self) -> dict[str, Any]:
        """The scales, as JSON."""
        return {"now": self._now.tolist(), "before": self._before.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the scales that `state_dict` returned."""
        self._now, self._before = np.array(state["now"]), np.array(state["before"])
