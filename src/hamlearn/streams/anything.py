"""Whatever data is kept in, as a stream, by one function."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hamlearn.errors import ConfigError, shown
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.datasets import from_dataset
from hamlearn.streams.encoder import TableSettings
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.loaders import LoaderStream
from hamlearn.streams.rows import library_of
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
      (a Hugging Face dataset, `csv.DictReader`, ...): `from_rows`. Cells are numbers, names and times: columns
      of arrays are given as arrays, or as pairs (u, target)
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
    kind = type(source).__name__
    if isinstance(source, Stream):
        return _made(lambda stream: stream, source, settings, (), "a stream")
    if isinstance(source, str | os.PathLike):
        return _made(csv, source, settings, [*TABLE, "delimiter", "encoding"], "a path")
    if isinstance(source, DataLoader):
        return _made(LoaderStream, source, settings, ("u", "target"), "a DataLoader")
    if isinstance(source, np.ndarray) and source.dtype.names:
        source = {name: source[name] for name in source.dtype.names}
    if library_of(source) is not None or isinstance(source, Mapping):
        return _made(from_rows, source, settings, TABLE, "a table")
    if is_array(source):
        return _made(_arrays, (source,), settings, ARRAYS, "an array")
    if isinstance(source, tuple | list) and len(source) == 2 and all(map(is_array, source)):
        return _made(_arrays, source, settings, ARRAYS, "an array")
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        return _made(from_dataset, source, {"batch_size": None, **settings}, DATASET, "a dataset")
    if callable(source) or isinstance(source, Iterable):
        return _items(source, settings)
    raise ConfigError(f"an object of type {kind} cannot be made a stream. Give {_KNOWN}.")


def is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray | torch.Tensor)


TABLE = [field.name for field in fields(TableSettings)]
DATASET = ["batch_size", "shuffle", "epochs", "seed"]
ARRAYS = [*DATASET, "dtype"]
"""Settings by what the data is kept in."""
_KNOWN = (
    "arrays, a data frame, a mapping of columns, a DataLoader, a dataset, the path of a CSV file, or an "
    "iterable of mappings, samples or pairs (u, target)"
)


def _made(
    make: Callable[..., Stream], source: Any, settings: Mapping[str, Any], names: Sequence[str], what: str
) -> Stream:
    """The stream that a function makes of a source with these settings, if it has them."""
    for name in settings:
        if name not in names:
            allowed = f"Its settings are {', '.join(names)}." if names else "Leave it out."
            raise ConfigError(f"{name}={shown(settings[name])} is not a setting of {what} as a stream. {allowed}")
    return make(source, **settings)


def _arrays(parts: Sequence[Any], dtype: torch.dtype | None = None, **settings: Any) -> Stream:
    """Inputs, and targets if there are any, a sample a row."""
    tensors = [_as_tensor(part, dtype, target=k == 1) for k, part in enumerate(parts)]
    sizes = [len(tensor) for tensor in tensors]
    if len(set(sizes)) > 1:
        raise ConfigError(f"there are {sizes[0]} inputs and {sizes[1]} targets. Give one target for each input.")
    data = tensors[0] if len(tensors) == 1 else TensorDataset(*tensors)
    return from_dataset(data, **{"batch_size": None, **settings})


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


def _items(source: Any, settings: dict[str, Any]) -> Stream:
    """By what the first item is."""
    kind = type(source).__name__
    first = list(itertools.islice(source() if callable(source) else source, 1))
    if isinstance(source, Iterator):
        source = itertools.chain(first, source)
    item = first[0] if first else None
    if isinstance(item, Mapping) or hasattr(item, "_asdict"):
        return _made(from_rows, source, settings, TABLE, "rows")
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
    return _made(from_iterable, source, settings, ("dtype", "length"), "an iterable")
