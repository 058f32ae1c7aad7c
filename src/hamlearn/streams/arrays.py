"""Data frames, arrays and rows of arrays, made ready for a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Sample
from hamlearn.streams.values import masked_in, native, shown, to_tensors


def is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray | torch.Tensor)


def as_tensor(array: Any, dtype: torch.dtype | None, target: bool) -> torch.Tensor:
    """Inputs or targets, one a row, as a tensor; a fraction a row becomes a vector of one.

    Args:
        array: An array of NumPy's, or a tensor.
        dtype: Of fractions, and of whole numbers and truth values as inputs; `None` is torch's default for NumPy's
            fractions and leaves the others, which may be tokens.
        target: Whether they are targets, where whole numbers are classes.
    """
    what = "target" if target else "input"
    tensor = _from_numpy(array, what) if isinstance(array, np.ndarray) else array.detach()
    if dtype is not None and (tensor.is_floating_point() or not target):
        tensor = tensor.to(dtype)
    elif isinstance(array, np.ndarray) and tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.dim() == 0:
        raise ConfigError(f"the {what} is a single number, {shown(array)}. Give an array with one row a sample.")
    return tensor[:, None] if tensor.dim() == 1 and (tensor.is_floating_point() or not target) else tensor


def _from_numpy(array: np.ndarray[Any, Any], what: str) -> torch.Tensor:
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"the {what} is an array of {array.dtype}, which are no numbers. Give a mapping of columns, for "
            'example from_any({"x": ..., "y": ...}, target="y", classes=[...], categories={"x": [...]}).'
        )
    masked = masked_in(array)
    if masked is not None:
        raise ConfigError(f"the {what}: {masked}")
    try:
        return torch.from_numpy(np.ascontiguousarray(native(array)))
    except TypeError as error:
        raise ConfigError(
            f"the {what}: an array of {array.dtype} cannot be made a tensor. Give array.astype(np.float64)."
        ) from error


def picked(rows: Iterable[Any], u: str, target: str | None, dtype: torch.dtype | None) -> Iterator[Sample]:
    """Of rows, an input that is an array and a target."""
    for row in rows:
        cells = row if isinstance(row, Mapping) else row._asdict()
        label = None if target is None else _of_cell(cells[target], target, dtype)
        yield Sample(_of_cell(cells[u], u, dtype), label)


def _of_cell(value: Any, name: str, dtype: torch.dtype | None) -> Any:
    try:
        tensors = to_tensors(value, dtype or torch.get_default_dtype())
    except SampleError as error:
        raise ConfigError(
            f"the column {name!r} holds {shown(value)}, which is no number and no array of numbers. Turn it "
            "into numbers before, for example names of classes into 0, 1, 2, ..."
        ) from error
    # As in a table: a fraction is a vector of one, a whole number is a class.
    scalar = is_array(tensors) and tensors.is_floating_point() and tensors.dim() == 0
    return tensors[None] if scalar else tensors
