"""What all estimators share: rows of any kind in, columns and classes that come later, save and resume."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import ConfigError, SampleError
from hamlearn.estimators.counts import MOST_COLUMNS
from hamlearn.estimators.encoder import ColumnNames, Layout, cells, fine_bins
from hamlearn.estimators.explain import Explanation, explain
from hamlearn.estimators.exported import Exported
from hamlearn.estimators.pipeline import ROWS, Pipeline
from hamlearn.estimators.saving import Saving, checked_seed
from hamlearn.estimators.tasks import ClassTask, NumberTask
from hamlearn.estimators.waiting import Waited, Waiting

Row = Mapping[Any, Any]


class Estimator(Saving):
    """A mixture of networks over rows whose columns become known as they come.

    Args:
        seed: Of the first weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = checked_seed(seed)
        self._columns = ColumnNames()
        self._names: tuple[Any, ...] = ()
        self._pipeline: Pipeline | None = None
        self._waiting = Waiting()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self.seed}, {self.rows:,} rows learned)"

    @property
    def rows(self) -> int:
        """How many rows have been learned."""
        return 0 if self._pipeline is None else self._pipeline.encoder.rows

    @property
    def waiting(self) -> int:
        """How many rows wait for their labels; at most 100,000, of which the oldest is forgotten first."""
        return len(self._waiting)

    def learn_one(self, x: Row, y: Any) -> None:
        """Learn that the row `x` has the target `y`."""
        # The row first: a class of a row that cannot be learned must not become known.
        x = cells(x)
        self._learn(x, self._checked(y))

    def wait_one(self, x: Row, id: Hashable) -> None:
        """Keep a row whose label comes later, by `label_one`, as it was answered now."""
        self._waiting.add(id, self._as_now(x))

    def label_one(self, id: Hashable, y: Any) -> None:
        """Learn the label of a row that waits: as it was answered when it came, and from what was known then."""
        waited = self._waiting[id]
        self._learn(waited.row, self._checked(y), waited, len(self._waiting) - 1)
        self._waiting.drop(id)

    @abstractmethod
    def _checked(self, y: Any) -> Any:
        """A target as it is learned.

        Raises:
            SampleError: If it cannot be one.
        """

    @abstractmethod
    def _set(self, targets: Sequence[Any], pipeline: Pipeline) -> None:
        """Write targets."""

    def _learn(self, x: Row, y: Any, waited: Waited | None = None, ahead: int = 0) -> None:
        pipeline = self._learn_one(x)
        self._set([y], pipeline)
        if waited is None or waited.answered is None:
            pipeline.learn(1)
        else:
            pipeline.learn_late(*waited.answered, ahead)

    def _as_now(self, x: Row) -> Waited:
        """A row with what the networks say of it now."""
        x = cells(x)
        pipeline = self._ask(x)
        if pipeline is None:
            return Waited(dict(x))
        answer, _, outputs = (part[0].copy() for part in pipeline.asked_answers)
        return Waited(dict(x), (pipeline.task.latest.numpy().copy(), outputs, answer))

    def _ask(self, x: Row) -> Pipeline | None:
        """The pipeline with the answer to a row; `None` before the first row was learned."""
        x, pipeline = cells(x), self._pipeline
        if pipeline is not None:
            self._write(x, pipeline.asked[0], pipeline)
            pipeline.ask(1)
        return pipeline

    def _late(self, rows: Rows, targets: Sequence[Any], delay: int) -> Iterator[tuple[int, Pipeline | None]]:
        """Answer row after row, and learn each label `delay` rows later; the last labels come at the end."""
        if not isinstance(delay, int) or delay < 0:
            raise ConfigError(f"delay={delay!r} must be a whole number of rows, 0 or more")
        due: deque[tuple[Waited, Any]] = deque()

        def learn() -> None:
            ahead = len(due) - 1
            waited, y = due.popleft()
            self._learn(waited.row, self._checked(y), waited, ahead)

        for place in range(len(rows)):
            if len(due) == delay:
                learn()
            due.append((self._as_now(rows[place]), targets[place]))
            yield place, self._pipeline
        while due:
            learn()

    def explain(self) -> Explanation:
        """Which networks and which columns carry the answers to the latest rows; nothing moves.

        Raises:
            ConfigError: If nothing has been learned.
        """
        return explain(self._learned(), self._columns)

    def export(self) -> Exported:
        """The answers as of now as a `torch.nn.Module`, which `torch.export` takes.

        Raises:
            ConfigError: If nothing has been learned.
        """
        return Exported(self._learned(), self._columns, self._answers())

    @abstractmethod
    def _answers(self) -> int:
        """How many numbers an answer has."""

    def _learned(self) -> Pipeline:
        if self._pipeline is None:
            raise ConfigError("nothing has been learned yet: learn a row first")
        return self._pipeline

    @abstractmethod
    def _task(self, outputs: int) -> ClassTask | NumberTask:
        """The task of this estimator, with so many outputs."""

    @abstractmethod
    def _outputs(self) -> int:
        """Places that are needed for outputs."""

    def _ready(self) -> Pipeline:
        """The pipeline, large enough for all columns and classes that are known."""
        numbers, hot = self._columns.layout
        outputs, now = self._outputs(), self._pipeline
        if now is not None:
            own = now.layout
            if numbers <= own.numbers and hot <= own.hot and outputs <= now.task.outputs:
                return now
            # Half as many again: each new column would cost a compilation.
            numbers = own.numbers if numbers <= own.numbers else max(numbers, own.numbers * 3 // 2)
            hot, outputs = max(hot, own.hot), max(outputs, now.task.outputs)
        task = self._task(outputs)
        fine = fine_bins(numbers) if now is None else now.layout.fine
        counted = numbers <= MOST_COLUMNS if now is None else now.layout.counted > 0
        entries = task.counted if counted else 0
        made = Pipeline(task, Layout(task.width, numbers, hot, fine, entries), self.seed)
        if now is not None:
            carry_over(now, made)
        self._pipeline = made
        return made

    def _write(self, x: Row, out: np.ndarray, pipeline: Pipeline) -> None:
        """Write a row of numbers; the usual row, of numbers alone in the usual order, in one stroke."""
        if tuple(x) == self._names and not self._columns.codes:
            try:
                out[: len(self._names)] = tuple(x.values())
            except (TypeError, ValueError):
                pass  # something that is not a number, and so is missing
            else:
                out[len(self._names) :] = np.nan
                return
        self._columns.write(x, out, pipeline.layout.numbers)

    def _learn_columns(self, rows: Sequence[Row]) -> Pipeline:
        """New columns and categories get their places."""
        self._columns.learn(rows)
        self._names = tuple(self._columns.numbers)
        return self._ready()

    def _learn_one(self, x: Row) -> Pipeline:
        """The pipeline with a row written, whose target is to be written."""
        now = self._pipeline
        usual = tuple(x) == self._names and not self._columns.codes
        if now is None or not usual or self._outputs() > now.task.outputs:
            now = self._learn_columns([x])
        self._write(x, now.raw[0], now)
        return now

    def _blocks(self, rows: Rows, begin: Sequence[int] = ()) -> Iterator[tuple[int, int, Pipeline]]:
        """Write rows block by block, for the caller to write their targets and to learn them at once.

        Args:
            rows: The rows.
            begin: Rows that have to begin a block.

        Yields:
            First row and number of rows of each block.
        """
        start, count = 0, len(rows)
        pipeline = self._learn_columns(rows.different()) if count else None
        while pipeline is not None and start < count:
            stop = min((at for at in begin if at > start), default=count)
            size = min(stop - start, pipeline.until_look())
            self._write_many(rows, start, size, pipeline.raw, pipeline)
            yield start, size, pipeline
            start += size

    def _rows_of(self, X: Any, y: Sequence[Any] | np.ndarray) -> Rows:
        """Rows with as many targets."""
        rows = as_rows(X)
        if len(rows) != len(y):
            raise SampleError(f"there are {len(rows)} rows and {len(y)} targets: give one target for each row")
        return rows

    def _write_many(self, rows: Rows, start: int, size: int, out: np.ndarray, pipeline: Pipeline) -> None:
        if rows.array is not None and rows.names == self._names and not self._columns.codes:
            width = len(self._names)
            out[:size, :width] = rows.array[start : start + size]
            out[:size, width:] = np.nan
            return
        for place in range(size):
            self._write(rows[start + place], out[place], pipeline)

    def _ask_many(self, X: Any) -> Iterator[tuple[int, int, Pipeline]]:
        """Answers for many rows, block by block; nothing moves."""
        rows, pipeline = X if isinstance(X, Rows) else as_rows(X), self._pipeline
        if pipeline is None:
            return
        for start in range(0, len(rows), ROWS):
            size = min(len(rows) - start, ROWS)
            self._write_many(rows, start, size, pipeline.asked, pipeline)
            pipeline.ask(size)
            yield start, size, pipeline

    def _about(self) -> dict[str, Any]:
        columns = self._columns
        return {
            "waiting": self._waiting.saved()[1],
            "estimator": self.kind,
            "seed": self.seed,
            "rows": self.rows,
            "numbers": [plain(name) for name in columns.numbers],
            "categories": [
                [plain(name), [plain(value) for value in codes]] for name, codes in columns.codes.items()
            ],
        }

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        about, now = self._about(), self._pipeline
        waiting = self._waiting.saved()[0]
        if now is None:
            return waiting, about | {"layout_of": None, "outputs": 0}
        layout = list(dataclasses.astuple(now.layout))
        return now.tensors() | waiting, about | {"layout_of": layout, "outputs": now.task.outputs}

    def _take(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        self._require_kind(about)
        pipeline = None
        if about["layout_of"] is not None:
            pipeline = Pipeline(self._task(about["outputs"]), Layout(*about["layout_of"]), about["seed"])
            pipeline.load(tensors, about["rows"])
        columns = ColumnNames()
        columns.numbers = {name: place for place, name in enumerate(about["numbers"])}
        columns.categories = {name: place for place, (name, _) in enumerate(about["categories"])}
        columns.codes = {
            name: {value: code for code, value in enumerate(codes)} for name, codes in about["categories"]
        }
        self.seed, self._columns, self._pipeline = about["seed"], columns, pipeline
        self._waiting = Waiting.loaded(tensors, about["waiting"])
        self._names = tuple(columns.numbers)


class Rows:
    """Many rows: a table of numbers, or dictionaries."""

    def __init__(self, names: tuple[Any, ...], array: np.ndarray | None, rows: Sequence[Row]) -> None:
        self.names, self.array, self._rows = names, array, rows

    def __len__(self) -> int:
        return len(self._rows) if self.array is None else len(self.array)

    def __getitem__(self, index: int) -> Row:
        if self.array is None:
            return self._rows[index]
        return dict(zip(self.names, self.array[index].tolist(), strict=True))

    def different(self) -> Sequence[Row]:
        """Rows that may have columns and categories of their own: of a table of numbers, one is enough."""
        return self._rows if self.array is None else [dict.fromkeys(self.names, 0.0)]


def as_rows(X: Any) -> Rows:
    """Many rows of any kind: a NumPy array or a tensor, a DataFrame of pandas or polars, or dictionaries.

    Raises:
        SampleError: If it is something else.
    """
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    columns = getattr(X, "columns", None)
    if columns is not None:
        names, values = tuple(columns), X.to_numpy()
    elif isinstance(X, np.ndarray):
        if X.ndim != 2:
            raise SampleError(
                f"X has {X.ndim} axes: give rows × columns, for example X.reshape(1, -1) for one row"
            )
        names, values = tuple(range(X.shape[1])), X
    elif isinstance(X, Sequence) and not isinstance(X, str) and all(isinstance(row, Mapping) for row in X):
        return Rows((), None, [cells(row) for row in X])
    else:
        try:
            return as_rows(np.asarray(X, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise SampleError(
                f"X is a {type(X).__name__}: give an array, a DataFrame or a list of dictionaries"
            ) from error
    if values.dtype.kind in "fiub":
        return Rows(names, values.astype(np.float64), ())
    # As a list, times would be whole numbers.
    listed = values if values.dtype.kind in "mM" else values.tolist()
    return Rows(names, None, [cells(dict(zip(names, row, strict=True))) for row in listed])


@torch.no_grad()
def carry_over(old: Pipeline, new: Pipeline) -> None:
    """Let a larger pipeline continue where `old` is: added entries have first weights, and are 0 elsewhere."""
    before, after = old.tensors(), new.tensors()
    places = torch.from_numpy(old.layout.moved_to(new.layout))
    start = new.layout.numbers
    after["recent"][:, start : start + new.layout.hot] = 0.0
    after["recent"][:, torch.from_numpy(old.layout.raw_moved_to(new.layout))] = before.pop("recent")
    for name, tensor in before.items():
        columns = _inputs_of(name, old, new, places) if tensor.dim() == 2 else None
        if columns is None:
            after[name][tuple(slice(size) for size in tensor.shape)] = tensor
        else:
            after[name][: len(tensor), columns] = tensor
    new.encoder.rows = old.encoder.rows


def _inputs_of(name: str, old: Pipeline, new: Pipeline, places: Tensor) -> Tensor | None:
    """Where the inputs of a first layer, whose weights, squares or sensitivities these are, lie in the larger."""
    if name.startswith(("team.memory.", "team.past.")):
        (start, stop), (begin, _) = old.layout.slice("zl"), new.layout.slice("zl")
        return places[start:stop] - begin
    for index, member in enumerate(old.team.members):
        if name.startswith(f"team.nets.{index}.0.weight") and member.reads != "h":
            (start, stop), (begin, _) = old.team.slices[index], new.team.slices[index]
            return places[start:stop] - begin
    return None


def plain(value: Any) -> Any:
    """A name or a class as JSON keeps it."""
    return value.item() if isinstance(value, np.generic) else value
