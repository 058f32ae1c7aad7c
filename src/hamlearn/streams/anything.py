"""Whatever data is kept in, as a stream, by one function."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hamlearn.errors import ConfigError, SampleError, shown
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.cells import column_names
from hamlearn.streams.datasets import from_dataset
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.loaders import LoaderStream
from hamlearn.streams.rows import library_of, source_of
from hamlearn.streams.standardized import CLIP, StandardizedStream
from hamlearn.streams.tables import csv, from_rows
from hamlearn.streams.values import NUMBERS, to_tensors


def from_any(source: Any, *, standardize: bool = False, **settings: Any) -> Stream:
    """A stream over whatever holds the data.

    Args:
        source: One of those below.
        standardize: Whether inputs, and targets that are fractions, are brought to mean 0 and deviation 1 on line,
            by `streams.standardize`.
        **settings: Those of the function that is named with it.

    Sources, and the functions that read them:

    - a stream: itself
    - a path of a CSV, Parquet, Arrow or Feather file: `csv`
    - a pandas or polars data frame, a mapping of columns, a structured NumPy array, rows as mappings
      (a Hugging Face dataset, `csv.DictReader`, ...): `from_rows`. A column that holds arrays, or lists of
      numbers, is an input by itself, with `u` and `target` to name them and `dtype` as the only other setting.
    - a NumPy array or tensor of inputs, or a pair of inputs and targets, one per row; a torch dataset:
      `from_dataset`, here with `batch_size=None`. NumPy's fractions take torch's default type, or
      `dtype`; a number becomes a vector of one, a whole number as a target is a class. Whole numbers and
      truth values as inputs stay what they are, since they may be tokens, unless `dtype` is given: for a
      network that computes with them, `dtype=torch.float32`.
    - a `DataLoader`: its batches, (u, target) or by the names `u` and `target`
    - samples, pairs (u, target) or inputs in any iterable, or a function that returns one: `from_iterable`

    Raises:
        ConfigError: Naming the type of the source and what to use, or a setting that it does not have.

    Example:
        >>> stream = from_any((np.zeros((3, 2)), np.array([0, 1, 0])))
        >>> print(stream.spec)
        u: float32[2], target: int64[], length: 3
        >>> stream = from_any({"x": [1.0, 2.0], "y": ["a", "b"]}, target="y", classes=["a", "b"])
        >>> [(sample.u.tolist(), sample.target.item()) for sample in stream]
        [([1.0], 0), ([2.0], 1)]
    """
    stream = _stream(source, settings)
    return StandardizedStream(stream, CLIP, True) if standardize else stream


def _stream(source: Any, settings: dict[str, Any]) -> Stream:
    if isinstance(source, Stream):
        _require_known(settings, (), "a stream")
        return source
    if isinstance(source, str | os.PathLike):
        return _called(csv, source, settings, "a path")
    if library_of(source) is not None:
        return _table(source, "a frame", settings)
    if isinstance(source, DataLoader):
        _require_known(settings, ("u", "target"), "a DataLoader")
        return LoaderStream(source, **settings)
    if isinstance(source, np.ndarray) and source.dtype.names:
        return _table({name: source[name] for name in source.dtype.names}, "a table", settings)
    if is_array(source):
        return _arrays((source,), settings)
    if isinstance(source, tuple | list) and len(source) == 2 and all(map(is_array, source)):
        return _arrays(source, settings)
    if isinstance(source, Mapping):
        _require_columns(source)
        return _table(source, "a table", settings)
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        return _called(from_dataset, source, {"batch_size": None, **settings}, "a dataset")
    if callable(source) or isinstance(source, Iterable):
        return _items(source, settings)
    raise ConfigError(f"an object of type {type(source).__name__} cannot be made a stream. Give {_KNOWN}.")


def is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray | torch.Tensor)


_KNOWN = (
    "arrays, a data frame, a mapping of columns, a DataLoader, a dataset, the path of a CSV file, or an "
    "iterable of mappings, samples or pairs (u, target)"
)


def _called(make: Callable[..., Stream], source: Any, settings: dict[str, Any], what: str) -> Stream:
    """The stream that a function makes of a source; the other arguments of the function are its settings."""
    _require_known(settings, tuple(inspect.signature(make).parameters)[1:], what)
    return make(source, **settings)


def _require_known(settings: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    for name in settings:
        if name not in names:
            allowed = f"Its settings are {', '.join(names)}." if names else "Leave it out."
            raise ConfigError(f"{name}={shown(settings[name])} is not a setting of {what} as a stream. {allowed}")


def _arrays(parts: Sequence[Any], settings: dict[str, Any]) -> Stream:
    """Inputs, and targets if there are any, a sample a row."""
    _require_known(settings, [*list(inspect.signature(from_dataset).parameters)[1:], "dtype"], "an array")
    given = {"batch_size": None, **settings}
    dtype = given.pop("dtype", None)
    tensors = [_as_tensor(part, dtype, target=k == 1) for k, part in enumerate(parts)]
    sizes = [len(tensor) for tensor in tensors]
    if len(set(sizes)) > 1:
        raise ConfigError(f"there are {sizes[0]} inputs and {sizes[1]} targets. Give one target for each input.")
    return from_dataset(tensors[0] if len(tensors) == 1 else TensorDataset(*tensors), **given)


def _as_tensor(array: Any, dtype: torch.dtype | None, target: bool) -> torch.Tensor:
    """Inputs or targets, one a row, as a tensor; a fraction a row becomes a vector of one.

    `None` as the type is torch's default for NumPy's fractions, and leaves whole numbers, which may be tokens, as
    they are. Whole numbers as targets are classes.
    """
    what, of_numpy = "target" if target else "input", isinstance(array, np.ndarray)
    if of_numpy and array.dtype.kind not in "biuf":
        raise ConfigError(
            f"the {what} is an array of {array.dtype}, which are not numbers. Give a mapping of columns, for "
            'example from_any({"x": ..., "y": ...}, target="y", classes=[...], categories={"x": [...]}).'
        )
    tensor = to_tensors(np.ascontiguousarray(array) if of_numpy and not np.ma.isMA(array) else array).detach()
    if dtype is not None and (tensor.is_floating_point() or not target):
        tensor = tensor.to(dtype)
    elif of_numpy and tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.dim() == 0:
        raise ConfigError(f"the {what} is a single number, {shown(array)}. Give an array with one row a sample.")
    return tensor[:, None] if tensor.dim() == 1 and (tensor.is_floating_point() or not target) else tensor


def _require_columns(columns: Mapping[str, Any]) -> None:
    for name, column in columns.items():
        rows = isinstance(column, Iterable) and not isinstance(column, str | Iterator)
        if isinstance(column, Mapping) or (rows and isinstance(next(iter(column), None), Mapping)):
            raise ConfigError(
                f"the mapping holds tables, not columns: {name!r} is a {type(column).__name__}. Choose one, "
                f"source[{name!r}]."
            )
        if not hasattr(column, "__len__") or isinstance(column, str):
            raise ConfigError(f"the column {name!r} is a {type(column).__name__}. Give a list or an array.")


def _table(source: Any, what: str, settings: dict[str, Any]) -> Stream:
    """Rows of a table; or of one column of it, if its cells are arrays."""
    table = source_of(source)
    names = table.header() or []
    _, first = next(iter(table.rows(names, 0)), (0, []))
    u = _column_of_arrays(dict(zip(names, first, strict=False)), settings)
    if u is None:
        return _called(from_rows, source, settings, what)

    def rows() -> Iterator[Mapping[str, Any]]:
        return (dict(zip(names, cells, strict=True)) for _, cells in source_of(source).rows(names, 0))

    return _rows_of_arrays(rows, u, settings)


def _rows_of_arrays(rows: Any, u: str, settings: dict[str, Any]) -> Stream:
    """Rows of which one column is the input by itself."""
    _require_known(settings, ("u", "target", "dtype"), f"rows whose column {u!r} holds arrays")
    target, dtype = settings.get("target"), settings.get("dtype") or torch.get_default_dtype()

    def picked() -> Iterator[Sample]:
        for row in rows() if callable(rows) else rows:
            cells = row if isinstance(row, Mapping) else row._asdict()
            yield Sample(_of_cell(cells, u, dtype), None if target is None else _of_cell(cells, target, dtype))

    return from_iterable(picked() if isinstance(rows, Iterator) else picked)


def _of_cell(cells: Mapping[str, Any], name: str, dtype: torch.dtype) -> Any:
    try:
        tensors = to_tensors(cells[name], dtype)
    except SampleError as error:
        raise ConfigError(
            f"the column {name!r} holds {shown(cells[name])}, which is neither a number nor an array. Turn it "
            "into numbers before, for example names of classes into 0, 1, 2, ..."
        ) from error
    # As in a table: a fraction is a vector of one, a whole number is a class.
    scalar = is_array(tensors) and tensors.is_floating_point() and tensors.dim() == 0
    return tensors[None] if scalar else tensors


def _column_of_arrays(row: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The column whose cells are inputs by themselves, since they are arrays; `None` where there is none."""
    u, target = settings.get("u"), settings.get("target")
    names = [name for name in row if name != target] if u is None else column_names(u)
    arrays = [
        n for n in names if isinstance(row.get(n), list | tuple) or (is_array(row.get(n)) and row[n].ndim > 0)
    ]
    if not arrays:
        return None
    if len(names) > 1:
        raise ConfigError(
            f"the column {arrays[0]!r} holds arrays, and {shown([n for n in names if n != arrays[0]])} would be "
            f"inputs too. Give u={arrays[0]!r} to take it alone, or put them together in one column."
        )
    return arrays[0]


def _items(source: Any, settings: dict[str, Any]) -> Stream:
    """By what the first item is."""
    kind = type(source).__name__
    first = list(itertools.islice(source() if callable(source) else source, 1))
    if isinstance(source, Iterator):
        source = itertools.chain(first, source)
    item = first[0] if first else None
    if isinstance(item, Mapping) or hasattr(item, "_asdict"):
        u = _column_of_arrays(item if isinstance(item, Mapping) else item._asdict(), settings)  # type: ignore[union-attr]
        if u is None:
            return _called(from_rows, source, settings, "rows")
        return _rows_of_arrays(source, u, settings)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], Mapping):
        raise ConfigError(
            f"a {kind} of pairs (mapping, target) is a data set of River. Use hamlearn.interop.river.from_river."
        )
    if isinstance(item, tuple) and library_of(item[-1]) is not None:
        raise ConfigError(
            f"a {kind} of {library_of(item[-1])}'s {type(item[-1]).__name__}: give the frame itself."
        )
    if not isinstance(item, (Sample, tuple, list, NoneType, *NUMBERS)) and not is_array(item):
        raise ConfigError(f"a {kind} of {type(item).__name__} cannot be made a stream. Give {_KNOWN}.")
    return _called(from_iterable, source, settings, "an iterable")
