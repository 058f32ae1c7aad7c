"""What every stream is: an iterable of samples that says what it yields and can be resumed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hamlearn.errors import CheckpointError, StreamError
from hamlearn.state import Sample, Tree


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of one tensor; `None` in the shape stands for a size that varies."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a stream yields.

    Args:
        u: A `TensorSpec`, or a pytree of them, for the inputs; `None` where nobody can know before
            the first sample has come.
        target: The same for the targets; `None` where there are none, or nobody can know.
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


class Stream(ABC):
    """An iterable of `Sample` that says what it yields (`spec`) and can be resumed to the bit.

    Each `iter(stream)` starts a pass from the beginning, except right after `load_state_dict`, when it
    goes on from where that state was taken. There is one pass at a time: an iterator that was overtaken
    by a newer one raises `StreamError` instead of mixing the two.

    A stream of your own implements `spec` and the methods `_rewind`, `_samples`, `_cursor` and `_seek`;
    the cursor must have moved on when a sample is handed out, so that a state taken between two samples
    is the state after the first of them.

    Example:
        >>> from hamlearn import streams
        >>> stream = streams.take(streams.signals.henon(), 3)
        >>> first = next(iter(stream))
        >>> position = stream.state_dict()
        >>> later = streams.take(streams.signals.henon(), 3)
        >>> later.load_state_dict(position)
        >>> len(list(later))
        2
    """

    _turn: int = 0
    _resumed: bool = False

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """Shapes, types and length of what the stream yields."""

    @property
    def length(self) -> int | float | None:
        """Samples in one whole pass; `math.inf` for an endless stream, `None` if unknown."""
        return self.spec.length

    @abstractmethod
    def _rewind(self) -> None:
        """Put the cursor at the beginning."""

    @abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Yield samples from the cursor on, moving it before each is handed out."""

    @abstractmethod
    def _cursor(self) -> dict[str, Any]:
        """Where the stream stands, in values that JSON keeps exactly."""

    @abstractmethod
    def _seek(self, cursor: Mapping[str, Any]) -> None:
        """Go to a place that `_cursor` gave."""

    def _config(self) -> dict[str, Any]:
        """What must agree between the stream that saved a state and the one that loads it."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: a dict that JSON keeps without loss."""
        return {"kind": type(self).__name__, "config": self._config(), "cursor": self._cursor()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from `state`, as `state_dict` of an equal stream gave it.

        Raises:
            CheckpointError: The state is of another kind of stream, or of one set up differently.
        """
        kind = type(self).__name__
        if not isinstance(state, Mapping) or {"kind", "config", "cursor"} - set(state):
            raise CheckpointError(
                f"{state!r} is not the state of a stream: it needs the keys kind, config and cursor. "
                "Give load_state_dict what state_dict returned."
            )
        if state["kind"] != kind:
            raise CheckpointError(
                f"the state belongs to a {state['kind']}, but this stream is a {kind}. "
                "Build the stream that was saved, then load."
            )
        mine = self._config()
        for key in sorted(set(mine) | set(state["config"])):
            was, now = state["config"].get(key), mine.get(key)
            if was != now:
                raise CheckpointError(
                    f"the {kind} was saved with {key}={was!r}, but this one has {key}={now!r}: its samples "
                    f"would not be those that were to come. Build it with {key}={was!r}, then load."
                )
        try:
            self._seek(state["cursor"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"the cursor {state['cursor']!r} of a {kind} cannot be read ({error}). "
                "Give load_state_dict what state_dict returned."
            ) from error
        self._resumed = True

    def __iter__(self) -> Iterator[Sample]:
        if not self._resumed:
            self._rewind()
        self._resumed = False
        self._turn += 1
        return self._pass(self._turn)

    def _pass(self, turn: int) -> Iterator[Sample]:
        samples = self._samples()
        while True:
            if turn != self._turn:
                raise StreamError(
                    f"this pass over a {type(self).__name__} was overtaken by a newer one, and both would "
                    "move "
                    "the same cursor. Finish one pass before the next, or build a second stream."
                )
            sample = next(samples, None)
            if sample is None:
                return
            yield sample

    def __len__(self) -> int:
        length = self.length
        if isinstance(length, int):
            return length
        what = "is endless" if length == math.inf else "does not know its length"
        raise TypeError(f"this {type(self).__name__} {what}; streams.take(stream, n) makes it finite")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec})"


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

    Floats that are not tensors yet take `dtype` (torch's default where `None`), so that a list of Python
    numbers fits a network without a word about types.
    """
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        return {key: to_tensors(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(to_tensors(item, dtype) for item in value)
    tensor = torch.as_tensor(value)
    if dtype is not None and tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor


def to_sample(item: Any, dtype: torch.dtype | None = None) -> Sample:
    """A `Sample` as it is; a pair as (u, target); anything else as an input without target."""
    if isinstance(item, Sample):
        return item
    if (
        isinstance(item, tuple | list)
        and len(item) == 2
        and not all(isinstance(x, float | int) for x in item)
    ):
        return Sample(to_tensors(item[0], dtype), to_tensors(item[1], dtype))
    if isinstance(item, tuple) and len(item) == 2:
        return Sample(to_tensors(item[0], dtype), to_tensors(item[1], dtype))
    return Sample(to_tensors(item, dtype))


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
