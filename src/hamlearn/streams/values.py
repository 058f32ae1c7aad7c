"""What a stream yields: its shapes, and how plain values become samples."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hamlearn.errors import SampleError, shown
from hamlearn.sample import Label, Sample, Tree

NUMBERS = (float, int, np.number, np.bool_)
"""Types of numbers, of Python and of NumPy."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of one tensor; `None` in the shape stands for a size that varies.

    Example:
        >>> print(TensorSpec((None, 3), torch.float32))
        float32[?, 3]
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a stream yields.

    Args:
        u: A `TensorSpec`, or a pytree of them, for the inputs; `None` as long as they are not
            known, before the first sample.
        target: The same for the targets; `None` where there are none, or they are not known.
        length: Number of samples in one pass, `math.inf` for an endless stream, `None` if unknown.

    Example:
        >>> print(Spec(TensorSpec((3,), torch.float32), None, math.inf))
        u: float32[3], target: -, length: ∞
    """

    u: Any
    target: Any
    length: int | float | None

    def __str__(self) -> str:
        length = {None: "?", math.inf: "∞"}.get(self.length, self.length)
        u, target = (_text(self.u, "?"), _text(self.target, "-"))
        return f"u: {u}, target: {target}, length: {length}"

    @classmethod
    def of(cls, sample: Sample, length: int | float | None) -> Spec:
        """The spec of a stream whose samples all look like this one."""
        return cls(tree_map(_describe, sample.u), tree_map(_describe, sample.target), length)

    def of_any_batch(self) -> Spec:
        """The same with a first axis of any size."""

        def of_any(part: TensorSpec) -> TensorSpec:
            return TensorSpec((None, *part.shape[1:]), part.dtype)

        return Spec(tree_map(of_any, self.u), tree_map(of_any, self.target), self.length)


def tree_map(fn: Callable[[Any], Any], tree: Tree) -> Any:
    """Apply `fn` to every leaf of tuples, lists and dicts; `None` stays `None`."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: tree_map(fn, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(fn, value) for value in tree)
    return fn(tree)


def to_tensors(value: Any, dtype: torch.dtype | None = None) -> Tree:
    """Numbers, arrays and lists of numbers become tensors; tuples and dicts are kept as pytrees.

    Floats that are not tensors yet take `dtype`; where it is `None`, those of NumPy keep their type, and those of
    Python take torch's default.

    Raises:
        SampleError: Something among them is not a number, or of a type that PyTorch does not have.
    """
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        return {key: to_tensors(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(to_tensors(item, dtype) for item in value)
    tensor = _tensor(value)
    if dtype is not None and tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor


def _tensor(value: Any) -> torch.Tensor:
    is_array = isinstance(value, np.ndarray)
    if np.ma.is_masked(value):
        raise SampleError(
            f"{np.ma.count_masked(value)} of the {value.size} entries are masked, and a tensor has no mask. "
            "Fill them, array.filled(0.0), or give the columns by name and choose what a missing cell gets, "
            'from_any({"x": array[:, 0], ...}, missing="mean").'
        )
    try:
        return torch.as_tensor(native(value) if is_array else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        what = f"an array of {value.dtype}" if is_array else shown(value)
        why = "" if is_array else f" ({error})"
        raise SampleError(
            f"{what} cannot be made a tensor{why}. Give numbers, arrays of numbers such as "
            "array.astype(np.float64), or lists of equal lengths."
        ) from error


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as PyTorch wants it, its bytes in the order of this machine and writable; itself where it is so."""
    fit = array.dtype.isnative and array.flags.writeable
    return array if fit else array.astype(array.dtype.newbyteorder("="))


def to_sample(item: Any, dtype: torch.dtype | None = None) -> Any:
    """A `Sample` or a `Label` as it is; a pair as (u, target); anything else as an input without target.

    Floats that are not tensors yet take `dtype` (torch's default where `None`), so that rows of an array fit a
    network without a word about types.
    """
    if isinstance(item, Sample | Label):
        return item
    dtype = dtype or torch.get_default_dtype()
    # A list of two numbers is a vector; a tuple of two, or a list of two that are not both numbers, is a pair.
    numbers = isinstance(item, list) and all(isinstance(entry, NUMBERS) for entry in item)
    if isinstance(item, tuple | list) and len(item) == 2 and not numbers:
        return Sample(to_tensors(item[0], dtype), to_tensors(item[1], dtype))
    return Sample(to_tensors(item, dtype))


def packed(tree: Any) -> Any:
    """A tensor, or a pytree of them, as JSON keeps it exactly.

    Example:
        >>> unpacked(packed((torch.tensor([0.1, float("nan")]), None, 3)))
        (tensor([0.1000,    nan]), None, 3)
    """
    if isinstance(tree, torch.Tensor):
        # A copy, since a tensor of one number may have strides that are none.
        flat = tree.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        about = {"dtype": str(tree.dtype).removeprefix("torch."), "shape": list(tree.shape)}
        return {"tensor": base64.b64encode(flat.numpy().tobytes()).decode(), "device": str(tree.device), **about}
    if isinstance(tree, dict):
        return {"dict": [[key, packed(value)] for key, value in tree.items()]}
    if isinstance(tree, tuple | list):
        return {"tuple" if isinstance(tree, tuple) else "list": [packed(value) for value in tree]}
    return tree


def unpacked(state: Any) -> Any:
    """What `packed` was given."""
    if not isinstance(state, dict):
        return state
    if "tensor" in state:
        data, dtype = bytearray(base64.b64decode(state["tensor"])), getattr(torch, state["dtype"])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(state["shape"]).to(state["device"])
    if "dict" in state:
        return {key: unpacked(value) for key, value in state["dict"]}
    if "tuple" in state:
        return tuple(map(unpacked, state["tuple"]))
    return list(map(unpacked, state["list"]))


def mix_seed(seed: int, *keys: int) -> int:
    """One 63-bit seed out of several integers, so that (seed 0, epoch 1) and (seed 1, epoch 0) differ.

    Drawing each epoch or block from a generator of its own makes the position alone enough to resume.
    """
    x = 0
    for key in (seed, *keys):
        # The finaliser of splitmix64: every bit of the key reaches every bit of the seed.
        x = (x + 0x9E3779B97F4A7C15 * (key + 1)) & (2**64 - 1)
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        x ^= x >> 31
    return x >> 1


def _describe(leaf: Any) -> TensorSpec:
    if isinstance(leaf, torch.Tensor):
        return TensorSpec(tuple(leaf.shape), leaf.dtype)
    return TensorSpec((), torch.as_tensor(leaf).dtype)


def _text(tree: Any, unknown: str) -> str:
    if tree is None:
        return unknown
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_text(value, unknown)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(_text(value, unknown) for value in tree) + ")"
    return str(tree)
