"""Columns as inputs of small networks, on line: standardised, piecewise-linear between quantiles, one-hot."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.estimators.counts import CELLS, MOST_COLUMNS, ClassCounts, NumberCounts, ranges
from hamlearn.loops.bound import Tensors

COARSE = 8
"""Bins of the piecewise-linear encoding of a numeric column; a second one is finer, as `fine_bins` says."""
FITS = (64, 256, 1024)
"""Rows after which the quantiles are taken; from the last one on they are checked every `FITS[-1]` rows."""
MOVED = 0.2
"""Largest distance between the distributions of a column, then and now, that leaves its quantiles as they are."""
CLIP = 6.0
HOT = 16
"""Inputs of a column of categories; those that come after the first `HOT - 4` share the last four."""


@dataclass(frozen=True)
class Layout:
    """Where everything lies in the vector that the networks read.

    The order is: last target, standardised numbers, one-hot categories, whether a number is missing, what targets
    each value had, and two piecewise-linear encodings. So each network reads one slice.

    Args:
        last: Entries of the last target.
        numbers: Numeric columns.
        hot: One-hot entries of all columns of categories.
        fine: Bins of the finer encoding.
        counted: Entries for what targets a value had.
    """

    last: int
    numbers: int
    hot: int
    fine: int
    counted: int

    @property
    def categories(self) -> int:
        """Columns of categories."""
        return self.hot // HOT

    @property
    def raw(self) -> int:
        """Numbers of a row as it comes: numeric columns, one-hot categories, and the code of each category."""
        return self.numbers + self.hot + self.categories

    @property
    def bins(self) -> tuple[int, int]:
        """Bins of the two encodings."""
        return COARSE, self.fine

    @property
    def edges(self) -> list[int]:
        """Where each segment begins, and the end of the last one."""
        counts = [self.numbers * self.counted, self.categories * self.counted]
        sizes = [
            self.last,
            self.numbers,
            self.hot,
            self.numbers,
            *counts,
            *(self.numbers * bins for bins in self.bins),
        ]
        return [0, *np.cumsum(sizes).tolist()]

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.edges[-1]

    def slice(self, name: str, units: int = 0) -> tuple[int, int]:
        """First and last entry of what a network reads.

        Args:
            name: `z`: numbers and categories. `c`: the targets of their values too. `q`: also the first encoding.
                `Q`: also the finer one. With `l` after it: also the last target. `h`: the recurrent layer's state,
                which follows the vector.
            units: Of that layer.
        """
        edges = self.edges
        if name == "h":
            return self.size, self.size + units
        last = {"z": 4, "c": 6, "q": 7, "Q": 8}[name[0]]
        return (0 if name.endswith("l") else edges[1]), edges[last]

    def moved_to(self, larger: Layout) -> np.ndarray:
        """Where each entry of this vector lies in a larger one."""
        found = [
            np.arange(stop - start) + begin
            for start, stop, begin in zip(self.edges, self.edges[1:], larger.edges, strict=False)
        ]
        # More classes: each column has more entries.
        for place, columns in ((4, self.numbers), (5, self.categories)):
            entries = larger.counted * np.arange(columns)[:, None] + np.arange(self.counted)
            found[place] = larger.edges[place] + entries.reshape(-1)
        return np.concatenate(found)

    def raw_moved_to(self, larger: Layout) -> np.ndarray:
        """Where each number of a row as it comes lies in a larger one."""
        starts = (0, larger.numbers, larger.numbers + larger.hot)
        sizes = (self.numbers, self.hot, self.categories)
        return np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])


def fine_bins(numbers: int) -> int:
    """Bins of the finer encoding: fewer for many columns."""
    return 32 if numbers <= 12 else 16 if numbers <= MOST_COLUMNS else 8


class Encoder:
    """Running moments and quantiles of the columns, and the pure step that encodes a row by them.

    Args:
        layout: Where everything lies.
        counts: Of the targets of each value.

    Attributes:
        moments: Count, mean and sum of squared differences of each numeric column.
        bins: For each encoding: lower edge, 1/width and presence of each bin, by column.
    """

    def __init__(self, layout: Layout, counts: ClassCounts | NumberCounts) -> None:
        self.layout, self.counts = layout, counts
        numbers = layout.numbers
        self.moments = [torch.zeros(numbers, dtype=torch.float64) for _ in range(3)]
        self.bins = [[torch.zeros(numbers, count, dtype=torch.float64) for _ in range(3)] for count in layout.bins]
        # The latest rows, from which quantiles are taken.
        self.recent = np.full((FITS[-1], layout.raw), np.nan)
        self.rows = 0

    def constants(self) -> list[Tensor]:
        """What changes between blocks only."""
        return [*(tensor for part in self.bins for tensor in part), self.counts.knots]

    @property
    def carry(self) -> list[Tensor]:
        """What moves with each row."""
        return [*self.moments, *self.counts.carry]

    def step(
        self, carry: Tensors, raw: Tensor, last: Tensor, constants: Tensors, target: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """The carry with this row and its target, and the encoded row; a number that is missing is NaN."""
        count, mean, squares, *counts = carry
        numbers, codes = self.layout.numbers, self.layout.numbers + self.layout.hot
        x = raw[:numbers]
        known = x.abs() <= torch.finfo(x.dtype).max
        x = torch.where(known, x, mean)
        there = known.to(x.dtype)
        new_count = count + there
        away = x - mean
        new_mean = mean + away * there / new_count.clamp(min=1.0)
        new_squares = squares + away * (x - new_mean) * there
        deviation = (new_squares / new_count.clamp(min=1.0)).sqrt()
        varies = deviation > 1e-9 * (1.0 + new_mean.abs())
        z = (x - new_mean) / torch.where(varies, deviation, torch.ones_like(deviation))
        z = torch.where(varies & known, z.clamp(-CLIP, CLIP), torch.zeros_like(z))
        parts = [last, z.float()]
        if self.layout.hot:
            parts.append(raw[numbers:codes].float())
        parts.append(1 - there.float())
        counts, inputs = self.counts.step(counts, x, known, raw[codes:], constants[6], target)
        parts += inputs
        for index in range(2):
            low, inverse, present = constants[3 * index : 3 * index + 3]
            inside = ((x[:, None] - low) * inverse).clamp(0.0, 1.0)
            parts.append(((2 * inside - 1) * present * there[:, None]).float().reshape(-1))
        return [new_count, new_mean, new_squares, *counts], torch.cat(parts)

    def remember(self, rows: np.ndarray) -> None:
        """Keep the latest rows for the quantiles."""
        size = len(self.recent)
        places = (self.rows + np.arange(len(rows))) % size
        self.recent[places[-size:]] = rows[-size:]
        self.rows += len(rows)

    def latest(self, count: int) -> np.ndarray:
        """Up to `count` of the latest rows, as they came."""
        count = min(count, self.rows, len(self.recent))
        return self.recent[(self.rows - count + np.arange(count)) % len(self.recent)]

    def until_fit(self) -> int:
        """How many rows may be taken before `refit` is due."""
        due = next((fit for fit in FITS if fit > self.rows), (self.rows // FITS[-1] + 1) * FITS[-1])
        return due - self.rows

    @property
    def fit_is_due(self) -> bool:
        """Whether `until_fit` has just run out."""
        return self.rows in FITS or not self.rows % FITS[-1]

    def refit(self) -> list[tuple[int, int, np.ndarray, np.ndarray]]:
        """Take the quantiles of columns that have moved away from theirs, or have none.

        Returns:
            For each of them: first entry and number of entries in the vector; the matrix A and the vector c with
            which weights w of the old encoding become A w of the new one, plus a bias of c·w, so that the answers
            stay. Not for the first quantiles of a column: its inputs were 0 until then.
        """
        changes = []
        recent = self.recent[: min(self.rows, len(self.recent))]
        for column in range(self.layout.numbers):
            values = recent[:, column]
            values = values[np.isfinite(values)]
            if len(values) < 32 or not self._moved(column, values):
                continue
            self.counts.refit(column, quantiles(values, ranges(values)))
            for index, count in enumerate(self.layout.bins):
                low, inverse, present = (part[column].numpy() for part in self.bins[index])
                knots = quantiles(values, count)
                old = [part.copy() for part in (low, inverse, present)]
                used = len(knots) - 1
                present[:], inverse[:], low[:] = 0.0, 0.0, 0.0
                low[:used], inverse[:used], present[:used] = knots[:-1], 1 / np.diff(knots), 1.0
                if not old[2].any():
                    continue
                # The old function at the new knots: its differences are the new weights.
                at = (2 * np.clip((knots[:, None] - old[0]) * old[1], 0, 1) - 1) * old[2]
                matrix = np.zeros((count, count))
                matrix[:used] = np.diff(at, axis=0) / 2
                start = self.layout.edges[6 + index] + column * count
                changes.append((start, count, matrix, at[0] + matrix.sum(0)))
        return changes

    def _moved(self, column: int, values: np.ndarray) -> bool:
        low, inverse, present = (part[column].numpy() for part in self.bins[0])
        used = int(present.sum())
        if not used or self.rows in FITS:
            return True
        knots = np.append(low[:used], low[used - 1] + 1 / inverse[used - 1])
        below = np.searchsorted(np.sort(values), knots, side="right") / len(values)
        if used < COARSE:
            return bool(values.min() < knots[0] or values.max() > knots[-1])
        return bool(np.abs(below - np.linspace(0, 1, len(knots))).max() > MOVED)


def quantiles(values: np.ndarray, bins: int) -> np.ndarray:
    """At least two and at most `bins` + 1 increasing knots: all values where they are few, else quantiles.

    Example:
        >>> quantiles(np.array([0.0, 1, 1, 2]), 8)
        array([0., 1., 2.])
    """
    different = np.unique(values)
    knots = different
    if len(different) > bins + 1:
        knots = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    if len(knots) > 1:
        return knots
    return np.array([knots[0], knots[0] + max(abs(knots[0]), 1.0)])


class ColumnNames:
    """The names of the columns, and rows as numbers: one place for each number, several for each category.

    Columns are numeric or of categories from the first value that is not missing on. They may come and go: what is
    not in a row is missing there. Rows are as `cells` returns them.
    """

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.categories: dict[object, int] = {}
        self.codes: dict[object, dict[object, int]] = {}

    @property
    def layout(self) -> tuple[int, int]:
        """Numeric columns, and one-hot entries."""
        return max(len(self.numbers), 1), HOT * len(self.categories)

    def learn(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Give new columns, and new categories, their places."""
        for row in rows:
            for name, value in row.items():
                if name in self.numbers:
                    continue
                if value is None or value != value:
                    continue
                codes = self.codes.get(name)
                if codes is not None:
                    if value not in codes and len(codes) < CELLS - 4:
                        codes[value] = len(codes)
                elif is_number(value):
                    self.numbers[name] = len(self.numbers)
                else:
                    self.categories[name] = len(self.categories)
                    self.codes[name] = {value: 0}

    def write(self, row: Mapping[Any, Any], out: np.ndarray, numbers: int) -> None:
        """Write a row of numbers; what is missing is NaN, what is not yet known is left out."""
        codes_at = numbers + HOT * len(self.categories)
        out[:] = np.nan
        out[numbers:codes_at] = 0.0
        for name, value in row.items():
            place = self.numbers.get(name)
            if place is not None:
                if is_number(value):
                    out[place] = value
                continue
            codes = self.codes.get(name)
            if codes is not None and value is not None and value == value:
                code, place = codes.get(value), self.categories[name]
                if code is None:
                    code = CELLS - 4 + sum(map(ord, str(value))) % 4
                out[codes_at + place] = code
                out[numbers + HOT * place + (code if code < HOT - 4 else HOT - 4 + code % 4)] = 1.0


USUAL = frozenset({str, int, float, bool, type(None), np.str_, np.int64, np.float32, np.float64, np.bool_})
"""Types of values that need no conversion."""


def cells(row: Any) -> Mapping[Any, Any]:
    """A row of numbers, texts and truth values; what is missing is `None` or NaN.

    Raises:
        SampleError: If it is not a mapping, or a value is something else.
    """
    if type(row) is not dict and not isinstance(row, Mapping):
        raise SampleError(f"a row is a {type(row).__name__}: give a dictionary from column to value")
    # This is done for each row: one call for all values.
    if USUAL.issuperset(map(type, row.values())):
        return row
    return {name: _cell(name, value) for name, value in row.items()}


def _cell(name: object, value: Any) -> object:
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, (str, int, float)):
        return value
    if is_missing(value):
        return None
    single = hasattr(value, "__float__") and not getattr(value, "ndim", 0)
    # float() also takes the times of NumPy, which are whole numbers inside.
    if value.dtype.kind in "biuf" if isinstance(value, np.generic) else single:
        try:
            return float(value)
        except (TypeError, ValueError, ArithmeticError, RuntimeError):
            pass
    raise SampleError(
        f"column {name!r} holds {reprlib.repr(value)}, a {type(value).__name__}: give a number, for example its "
        "timestamp(), or a text"
    )


def is_missing(value: Any) -> bool:
    """Whether a value is `None`, NaN, or NA or NaT of pandas."""
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):
        return False  # several values, or none that can be compared


def is_number(value: object) -> bool:
    """Whether a value belongs into a numeric column."""
    return isinstance(value, (int, float, np.number, np.bool_))
