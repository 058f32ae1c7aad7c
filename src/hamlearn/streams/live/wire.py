"""Messages of a feed: what a line of JSON, or an object of the same form, has to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.streams.values import shown

LONGEST = 1 << 20
"""Bytes in the longest message that is read: a feed without line ends must not fill the memory."""
_REMEDY = 'Send objects like {"u": [0.1], "target": [1.0], "t": 0.5}, or leave bad messages out with bad="skip".'
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some systems write before the first line."""
_NUMPY: dict[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(name)
    for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
}


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A sample, or the label of an earlier one: then it has an id and a target, and nothing else."""

    u: Any = None
    target: Any = None
    t: Any = None
    tau: Annotated[float, msgspec.Meta(gt=0)] | None = None
    boundary: bool = False
    id: str | int | None = None

    def check(self, place: str) -> None:
        """Raise if it is neither a sample nor a label."""
        problem = None
        if self.u is None and self.id is None:
            problem = "it has no u"
        elif self.u is None and (
            self.target is None or self.t is not None or self.tau is not None or self.boundary
        ):
            problem = "it has no u, and a label has an id, a target and nothing else"
        if problem:
            raise SampleError(f"{place} is not a sample: {problem}. {_REMEDY}")


@dataclass(slots=True)
class Letter:
    """A message, or a line, as it came.

    Args:
        data: Its bytes: a JSON object.
        place: Its name in messages.
        token: What it is acknowledged by; `None` if no acknowledgement is due.
    """

    data: bytes
    place: str
    token: str | None = None

    def message(self) -> Message:
        """The message that it holds.

        Raises:
            SampleError: It is not a message, or too long.
        """
        if len(self.data) > LONGEST:
            raise SampleError(
                f"{self.place} is longer than {LONGEST} bytes. Send one sample per message, end lines with a line "
                'feed, or leave such messages out with bad="skip".'
            )
        try:
            return _DECODER.decode(self.data.removeprefix(_MARK))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            start = self.data[:80].decode("utf-8", "replace").rstrip("\n")
            raise SampleError(
                f"{self.place} is not a sample: {str(error)[:200]}, in {start!r}. {_REMEDY}"
            ) from error


def message_of(item: Mapping[str, Any], place: str) -> Message:
    """A mapping as a message.

    Raises:
        SampleError: It is not a message.
    """
    item = {**item, "tau": tau_of(item.get("tau"), place)}
    try:
        return msgspec.convert(item, Message)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SampleError(f"{place} is not a sample: {error}. {_REMEDY}") from error


def tau_of(value: Any, place: str) -> float | None:
    """The time step that a sample gives; `None` if it gives none."""
    if value is None:
        return None
    try:
        tau = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        tau = math.nan
    return require_step(tau, value, place)


def require_step(tau: float, said: Any, place: str) -> float:
    """A time step, which is a positive, finite number; `said` is what it was made of."""
    if not 0.0 < tau < math.inf:
        raise SampleError(
            f"tau={shown(said)} at {place} is not a time step. Send a positive, finite number, or leave such "
            'samples out with bad="skip".'
        )
    return tau


class Numbers:
    """Turns numbers of messages, and lists of them, into arrays of one type, with every number finite.

    Args:
        dtype: The type; `None`: whole numbers stay whole, and fractions get torch's default.
        name: What they are, for messages: `"u"` or `"target"`.

    Attributes:
        fits: Whether NumPy has the type, so that tensors of these arrays have it too.

    Example:
        >>> Numbers(None, "target").array([1, 2], "line 1").dtype, Numbers(torch.float32, "u").array(1, "").dtype
        (dtype('int64'), dtype('float32'))
    """

    def __init__(self, dtype: torch.dtype | None, name: str) -> None:
        self._name, self._torch, self._keeps = name, dtype or torch.get_default_dtype(), dtype is None
        self.fits = self._torch in _NUMPY
        # Numbers of other types, such as bfloat16, go through doubles.
        self._numpy = _NUMPY.get(self._torch, np.dtype("float64"))

    def array(self, value: Any, place: str) -> Any:
        """The array; `None` for `None`.

        Raises:
            SampleError: There is something else than numbers, or a number that the type cannot hold.
        """
        if value is None:
            return None
        try:
            if _are_small(value):
                array = np.array(value, None if self._keeps else self._numpy)
                return array.astype(self._numpy) if self._keeps and array.dtype.kind == "f" else array
            given = np.array(value)
            if given.dtype.kind not in "bif":
                raise ValueError(f"{shown(value)} is not made of numbers of at most 64 bits")
            if self._keeps and given.dtype.kind != "f":
                return given
            with np.errstate(over="ignore", invalid="ignore"):
                array = given.astype(self._numpy)
            fits = np.isfinite(array) if array.dtype.kind == "f" else array == np.trunc(given)
            if not fits.all():
                raise ValueError(f"{self._torch} cannot hold {shown(value)}")
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            raise SampleError(
                f"{self._name} at {place} cannot be a tensor ({error}). Send a number, or lists of numbers of "
                'equal lengths, or leave such samples out with bad="skip".'
            ) from error
        return array

    def tensor(self, array: Any) -> Tensor:
        """An array of these numbers as a tensor."""
        tensor = torch.from_numpy(array)
        return tensor if self.fits or not tensor.is_floating_point() else tensor.to(self._torch)


def _are_small(value: Any) -> bool:
    """Whether these are few numbers that any type can hold: Python has seen that before NumPy has begun."""
    if type(value) is int:
        return -128 < value < 128
    try:
        # NaN is not equal to itself, and makes the sum so.
        return type(value) is list and min(value) > -128 and max(value) < 128 and sum(value) == sum(value)
    except (TypeError, ValueError):
        return False


_DECODER = msgspec.json.Decoder(Message)
