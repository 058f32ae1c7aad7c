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
    within some ten samples.

    Args:
        width: Entries of a vector.
        factor: How many times the scale an entry may have; 0 turns clipping off.

    Example:
        >>> bound = ScaleBound(1, factor=10.0)
        >>> bound.clip(np.array([[0.5], [1e12], [2.0]]))
        (array([[ 0.5],
               [10. ],
               [ 2. ]]), [1])
    """

    def __init__(self, width: int, factor: float) -> None:
        self._factor, self._count = factor, 0
        self._now, self._before = np.ones(width), np.ones(width)

    def clip(self, rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Clip rows of numbers, the oldest first; also returns which rows were changed."""
        if not self._factor:
            return rows, []
        parts: list[np.ndarray] = []
        clipped: list[int] = []
        for part in np.split(rows, range(WINDOW - self._count % WINDOW, len(rows), WINDOW)):
            done, found = self._clip_part(part)
            clipped += [sum(map(len, parts)) + k for k in found]
            parts.append(done)
        return np.concatenate(parts) if len(parts) > 1 else parts[0], clipped

    def _clip_part(self, rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """As `clip`, for rows of one window."""
        if self._count % WINDOW == 0:
            self._before, self._now = self._now, np.ones_like(self._now)
        self._count += len(rows)
        largest = np.abs(rows).max(axis=0)
        if (largest <= self._factor * np.maximum(self._now, self._before)).all():
            self._now = np.maximum(self._now, largest)
            return rows, []
        # Rare: one by one, since each row changes the bound of the next.
        rows = rows.copy()
        return rows, [k for k, row in enumerate(rows) if self._clip_row(row)]

    def _clip_row(self, row: np.ndarray) -> bool:
        scale = np.maximum(self._now, self._before)
        limit = self._factor * scale
        beyond = np.abs(row) > limit
        self._now = np.maximum(self._now, np.where(beyond, 2 * scale, np.abs(row)))
        np.clip(row, -limit, limit, out=row)
        return bool(beyond.any())

    def state_dict(self) -> dict[str, Any]:
        """The scales, as JSON."""
        return {"count": self._count, "now": self._now.tolist(), "before": self._before.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the scales that `state_dict` returned."""
        self._count, self._now, self._before = state["count"], np.array(state["now"]), np.array(state["before"])
