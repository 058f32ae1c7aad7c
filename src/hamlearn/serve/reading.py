"""From what a request says to arrays that are known to fit, before a learner hears of any of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from hamlearn.sample import Id
from hamlearn.serve.ids import problem_with
from hamlearn.serve.refusals import Refused
from hamlearn.serve.work import Work
from hamlearn.streams.values import shown

LARGEST_STEP = 1e18
"""The longest time step: sums of many still fit into a float."""

_SAMPLE = ("u", "target", "tau", "boundary", "id")
_LABEL = ("id", "target")
_SAMPLE_KEYS, _LABEL_KEYS = frozenset(_SAMPLE), frozenset(_LABEL)
_NUMBERS = frozenset((int, float))
_EXAMPLE = '{"u": [0.1, 0.2], "target": [1.0], "id": "a-1"}'


class Reading:
    """Reads requests for one kind of network.

    Args:
        inputs: How many numbers an input has.
        outputs: How many numbers a target has.
        classes: How many classes there are, where a target is one of them; else `None`.
        dtype: NumPy's type of inputs, and of targets that are numbers.
        batch: How many samples a request may hold.
    """

    def __init__(self, inputs: int, outputs: int, classes: int | None, dtype: Any, batch: int) -> None:
        self._inputs, self._outputs, self._classes = inputs, outputs, classes
        self._dtype, self._batch = np.dtype(dtype), batch
        self._largest = float(np.finfo(self._dtype).max)

    def samples(self, value: Any, agent: str) -> Work:
        """One sample, a list of them, or an object of lists."""
        rows = self._rows(value, _SAMPLE_KEYS, "u")
        if rows is None:
            return self._columns(value, agent)
        us = self._matrix([row["u"] for row in rows], self._inputs, "u")
        targets = [row.get("target") for row in rows]
        work = Work(agent, False, "one" if isinstance(value, dict) else "rows", False, len(rows), us, None)
        return self._completed(work, targets, *([row.get(key) for row in rows] for key in _SAMPLE[2:]))

    def labels(self, value: Any, agent: str) -> Work:
        """One label, a list of them, or an object of lists."""
        rows = self._rows(value, _LABEL_KEYS, "id")
        layout: Literal["one", "rows", "columns"] = "one" if isinstance(value, dict) else "rows"
        if rows is None:
            ids = self._column(value["id"], None, "id")
            targets = self._column(value.get("target"), len(ids), "target")
            layout = "columns"
        else:
            ids, targets = [row["id"] for row in rows], [row.get("target") for row in rows]
        for index, id in enumerate(ids):
            if id is None:
                raise _refused(f"id of label {index} is null. A label needs the id of its sample")
        for index, target in enumerate(targets):
            if target is None:
                raise _refused(f"target of label {index} is missing. Send {{'id': …, 'target': …}}")
        known = self._targets(targets)[0]
        return Work(agent, True, layout, False, len(ids), None, known, ids=self._ids(ids))

    def is_label(self, value: Any) -> bool:
        """Whether a message without a route of its own is about labels: it has ids, and no inputs."""
        first = value[0] if isinstance(value, list) and value else value
        return isinstance(first, dict) and "u" not in first and "id" in first

    def _rows(self, value: Any, keys: frozenset[str], needed: str) -> list[dict[str, Any]] | None:
        """The objects one by one; `None` where one object holds lists of everything."""
        if not isinstance(value, dict | list):
            raise _refused(f"the body is {shown(value)}, neither an object nor a list of them")
        rows = [value] if isinstance(value, dict) else value
        self._require_count(len(rows))
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                raise _refused(f"number {index} of the list is {shown(row)}, no object")
            if row.get(needed) is None:
                raise _refused(f"number {index} has no {needed}")
            if not row.keys() <= keys:
                unknown = shown(min(str(key) for key in row.keys() - keys))
                raise _refused(
                    f"number {index} has the unknown key {unknown} (known are {', '.join(sorted(keys))})"
                )
        if isinstance(value, dict):
            first = value[needed]
            nested = isinstance(first, list) and (needed == "id" or (first and isinstance(first[0], list)))
            if nested or (isinstance(first, np.ndarray) and first.ndim == 2):
                return None
        return rows

    def _columns(self, value: dict[str, Any], agent: str) -> Work:
        u = value["u"]
        self._require_count(len(u))
        matrix = self._matrix(u, self._inputs, "u")
        work = Work(agent, False, "columns", isinstance(u, np.ndarray), len(matrix), matrix, None)
        targets = value.get("target")
        if not isinstance(targets, np.ndarray):
            targets = self._column(targets, work.count, "target")
        return self._completed(work, targets, *(self._column(value.get(k), work.count, k) for k in _SAMPLE[2:]))

    def _completed(self, work: Work, targets: Any, taus: list[Any], ends: list[Any], ids: list[Any]) -> Work:
        work.target, work.known = self._targets(targets)
        if work.target is not None and len(work.target) != work.count:
            raise _refused(f"target has {len(work.target)} rows, and u has {work.count}")
        for index, tau in enumerate(taus):
            if tau is not None and not (type(tau) in _NUMBERS and 0.0 < tau <= LARGEST_STEP):
                raise _refused(
                    f"tau of sample {index} is {shown(tau)}. Send a number above 0 and at most {LARGEST_STEP:g}"
                )
        for index, end in enumerate(ends):
            if end is not None and not isinstance(end, bool):
                raise _refused(f"boundary of sample {index} is {shown(end)}, neither true nor false")
        if any(tau is not None for tau in taus):
            work.tau = [None if tau is None else float(tau) for tau in taus]
        if any(ends):
            work.boundary = [bool(end) for end in ends]
        work.ids = self._ids(ids)
        return work

    def _column(self, value: Any, count: int | None, name: str) -> list[Any]:
        if value is None and count is not None:
            return [None] * count
        if isinstance(value, np.ndarray) and value.ndim == 1:
            value = value.tolist()
        if not isinstance(value, list):
            raise _refused(f"{name} is {shown(value)}. Send a list with an entry for each sample")
        if count is not None and len(value) != count:
            raise _refused(f"{name} has {len(value)} entries for {count} samples. Send one for each")
        self._require_count(len(value))
        return value

    def _ids(self, ids: list[Any]) -> list[Id | None] | None:
        if all(id is None for id in ids):
            return None
        for index, id in enumerate(ids):
            problem = None if id is None else problem_with(id)
            if problem:
                raise _refused(f"id number {index}, {shown(id)}, {problem}")
        return ids

    def _targets(self, values: Any) -> tuple[np.ndarray | None, list[bool] | None]:
        if isinstance(values, np.ndarray):
            if self._classes is None:
                return self._matrix(values, self._outputs, "target"), None
            if values.ndim != 1:
                raise _refused(
                    f"target has the shape {list(values.shape)}. Send the number of a class for each sample"
                )
            return self._indices(values.tolist()), None
        known = [value is not None for value in values]
        if not any(known):
            return None, None
        present = [value for value in values if value is not None]
        if self._classes is not None:
            table = self._indices(present)
        else:
            table = self._matrix(present, self._outputs, "target")
        if all(known):
            return table, None
        filled = np.zeros((len(known), *table.shape[1:]), table.dtype)
        filled[known] = table
        return filled, known

    def _indices(self, values: list[Any]) -> np.ndarray:
        for value in values:
            if type(value) is not int or not 0 <= value < (self._classes or 0):
                raise _refused(
                    f"target is {shown(value)}. Send the number of a class, 0 to {(self._classes or 0) - 1}"
                )
        return np.array(values, np.int64)

    def _matrix(self, rows: Any, width: int, name: str) -> np.ndarray:
        """Rows of so many finite numbers each."""
        if isinstance(rows, np.ndarray):
            if rows.ndim != 2 or rows.shape[1] != width:
                raise _refused(f"{name} has the shape {list(rows.shape)}. Send rows of {width} numbers")
            table = rows
        else:
            listed = [row.tolist() if isinstance(row, np.ndarray) and row.ndim == 1 else row for row in rows]
            if not _is_table(listed, width):
                for index, row in enumerate(listed):
                    _require_row(row, width, f"{name} of number {index}")
            try:
                flat = np.fromiter(chain.from_iterable(listed), np.float64, len(listed) * width)
                table = flat.reshape(-1, width)
            except OverflowError as error:
                raise _refused(f"{name} has a whole number that is too large") from error
        self._require_count(len(table))
        if not (-self._largest <= table.min() and table.max() <= self._largest):
            # Neither is true of what is no number.
            index = int(np.flatnonzero(~(np.abs(table) <= self._largest).all(axis=1))[0])
            raise _refused(
                f"{name} of number {index} has a number that {self._dtype} cannot hold. Send smaller ones"
            )
        return table.astype(self._dtype, copy=False)

    def _require_count(self, count: int) -> None:
        if count == 0:
            raise _refused("the list is empty. Send at least one")
        if count > self._batch:
            raise Refused(
                413, f"{count} samples are more than the {self._batch} that one request may hold. Send several."
            )


def _is_table(rows: list[Any], width: int) -> bool:
    """Whether all rows are lists of so many numbers; found without a line of Python for each of them."""
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {width}:
        return False
    return _NUMBERS.issuperset(map(type, chain.from_iterable(rows)))


def _require_row(row: Any, width: int, name: str) -> None:
    if not isinstance(row, list):
        raise _refused(f"{name} is {shown(row)}. Send a list of {width} numbers")
    if len(row) != width:
        raise _refused(f"{name} has {len(row)} entries. Send {width} numbers")
    if not _NUMBERS.issuperset(map(type, row)):
        wrong: Sequence[Any] = [entry for entry in row if type(entry) not in _NUMBERS]
        raise _refused(f"{name} holds {shown(wrong[0])}, which is no number")


def _refused(problem: str) -> Refused:
    return Refused(422, f"{problem}. For example: {_EXAMPLE}")
