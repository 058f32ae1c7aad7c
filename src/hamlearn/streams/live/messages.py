"""What a feed sends, a line of JSON or a Python object: checked, and copied into memory of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import SampleError, shown
from hamlearn.sample import Id, Label, Sample
from hamlearn.streams.clock import to_seconds
from hamlearn.streams.values import to_sample

LONGEST = 1 << 20
"""Bytes in the longest message that is read: a feed without line ends must not fill the memory."""
_REMEDY = 'Send objects like {"u": [0.1], "target": [1.0], "t": 0.5}, or leave bad messages out with bad="skip".'
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some systems write before the first line."""
_NUMPY: dict[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(name)
    for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
}
_NO_NUMBER = (TypeError, ValueError, RuntimeError, OverflowError, RecursionError)


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A sample, or the label of an earlier one: then it has an id and a target, and nothing else."""

    u: Any = None
    target: Any = None
    t: Any = None
    tau: Annotated[float, msgspec.Meta(gt=0)] | None = None
    boundary: bool = False
    id: Id | None = None


_DECODER = msgspec.json.Decoder(Message)


@dataclass(slots=True)
class Letter:
    """A message, or a line, as it came.

    Args:
        data: Its bytes: a JSON object.
        place: Its name in error messages.
        token: What it is acknowledged by; `None` if no acknowledgement is due.
    """

    data: bytes
    place: str
    token: str | None = None


@dataclass(slots=True)
class Arrival:
    """A sample, a label or a bad item as it waits for the learner.

    Args:
        place: Its name in error messages, such as `"line 3 of the socket"`.
        arrived: When it came, by the feed's clock.
        u: The input; `None` for a label and for a bad item. An array if it can be one: many arrays become one
            tensor faster than many tensors do.
        target: The target, likewise.
        id: The id of the sample; of a label `("label", id)`.
        stamp: Its time stamp in seconds; `None` if it has none.
        tau: Time since the item before it, as the source says; that of dropped items is added.
        boundary: Whether it ends a sequence.
        error: The error of a bad item.
        token: What a broker's message is acknowledged by.
    """

    place: str
    arrived: float
    u: Any = None
    target: Any = None
    id: Any = None
    stamp: float | None = None
    tau: float | None = None
    boundary: bool = False
    error: SampleError | None = None
    token: str | None = None

    def event(self, tau: float | None) -> Sample | Label:
        """It as the learner gets it, with its time step."""
        target = _tensor(self.target)
        if self.u is None:
            return Label(self.id[1], target)
        return Sample(_tensor(self.u), target, tau, self.boundary, self.id)


class Parser:
    """Makes an `Arrival` of whatever a source gives.

    Args:
        dtype: Of inputs in messages, and of fractions in items that are not tensors; `None`: torch's default.
        target_dtype: Of targets in messages; `None` keeps whole numbers whole.
    """

    def __init__(self, dtype: torch.dtype | None, target_dtype: torch.dtype | None) -> None:
        self._dtype, self._target_dtype = dtype or torch.get_default_dtype(), target_dtype

    def arrival(self, item: Any, place: str, now: float) -> Arrival:
        """What a source gave. A bad item too: the learner comes to it in its turn."""
        token = item.token if type(item) is Letter else None
        try:
            if type(item) is Letter:
                item = _decoded(item)
            # By type first: asking whether something is a Mapping takes as long as the rest.
            elif type(item) is not Sample and isinstance(item, Mapping):
                item = _converted(item, place)
            arrival = (self._of_message if type(item) is Message else self._of_item)(item, place, now)
        except SampleError as error:
            # Its time passes, if that can be read.
            tau = item.get("tau") if isinstance(item, Mapping) else getattr(item, "tau", None)
            legible = isinstance(tau, float | int) and not isinstance(tau, bool) and 0 < tau < math.inf
            arrival = Arrival(place, now, tau=tau if legible else 0.0, error=error)
        arrival.token = token
        return arrival

    def _of_message(self, message: Message, place: str, now: float) -> Arrival:
        if message.u is None and message.id is None:
            raise SampleError(f"{place} is not a sample: it has no u. {_REMEDY}")
        timed = message.t is not None or message.tau is not None or message.boundary
        if message.u is None and (message.target is None or timed):
            reason = "it has no u, and a label has an id, a target and nothing else"
            raise SampleError(f"{place} is not a sample: {reason}. {_REMEDY}")
        target = numbers(message.target, self._target_dtype, f"target at {place}", self._target_dtype is None)
        if message.u is None:
            return Arrival(place, now, target=target, id=("label", message.id))
        u = numbers(message.u, self._dtype, f"u at {place}")
        stamp = None if message.t is None else to_seconds(message.t, place)
        return Arrival(place, now, u, target, message.id, stamp, message.tau, message.boundary)

    def _of_item(self, item: Any, place: str, now: float) -> Arrival:
        """A sample, a label or what can be made one; copied, since the source may use its memory again."""
        stamp = None
        if type(item) is tuple and len(item) == 2:
            if isinstance(item[1], Sample):
                stamp, item = to_seconds(item[0], place), item[1]
            elif type(item[0]) is Tensor and type(item[1]) is Tensor:
                item = Sample(*item)
        if isinstance(item, Label):
            return Arrival(place, now, target=_kept(item.target), id=("label", item.id))
        if not isinstance(item, Sample) and item is not None:
            try:
                item = to_sample(item, self._dtype)
            except _NO_NUMBER as error:
                raise SampleError(
                    f"{place} is not a sample ({error}). Give Samples, pairs (u, target), or inputs: numbers, "
                    "arrays or lists of numbers of equal lengths."
                ) from error
        if item is None or item.u is None:
            raise SampleError(f"{place} has no input. Give each sample its u.")
        tau = None if item.tau is None else tau_of(item.tau, place)
        return Arrival(place, now, _kept(item.u), _kept(item.target), item.id, stamp, tau, bool(item.boundary))


def _decoded(letter: Letter) -> Message:
    """The message in a letter; raises if there is none, or it is too long."""
    if len(letter.data) > LONGEST:
        raise SampleError(
            f"{letter.place} is longer than {LONGEST} bytes. Send one sample per message, end lines with a line "
            'feed, or leave such messages out with bad="skip".'
        )
    try:
        return _DECODER.decode(letter.data.removeprefix(_MARK))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        start = letter.data[:80].decode("utf-8", "replace").rstrip("\n")
        raise SampleError(
            f"{letter.place} is not a sample: {str(error)[:200]}, in {start!r}. {_REMEDY}"
        ) from error


def _converted(item: Mapping[str, Any], place: str) -> Message:
    """A mapping as a message."""
    tau = None if item.get("tau") is None else tau_of(item["tau"], place)
    try:
        return msgspec.convert({**item, "tau": tau}, Message)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SampleError(f"{place} is not a sample: {error}. {_REMEDY}") from error


def _kept(leaf: Any) -> Any:
    """A copy: an array, at a third of the price of a tensor, if a tensor can be one."""
    if leaf is None:
        return None
    if type(leaf) is Tensor:
        try:
            return leaf.numpy().copy("K")
        except (TypeError, RuntimeError):
            # It is on another device, part of a graph, sparse, or of a type that NumPy does not have.
            pass
    return trees.copied(leaf)


def _tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if type(leaf) is np.ndarray else leaf


def tau_of(value: Any, place: str) -> float:
    """The time step that a sample gives."""
    try:
        tau = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except _NO_NUMBER:
        tau = math.nan
    return require_step(tau, value, place)


def require_step(tau: float, given: Any, place: str) -> float:
    """A time step, which is a positive, finite number; `given` is what it was made of."""
    if not 0.0 < tau < math.inf:
        raise SampleError(
            f"tau={shown(given)} at {place} is not a time step. Send a positive, finite number, or leave such "
            'samples out with bad="skip".'
        )
    return tau


def numbers(value: Any, dtype: torch.dtype | None, what: str, keep: bool = False) -> Any:
    """A number, or lists of numbers, as an array of one type with every number finite; `None` for `None`.

    Args:
        value: What a message holds.
        dtype: The type; `None` is torch's default. Numbers of a type that NumPy does not have become a tensor.
        what: What they are, for error messages.
        keep: Whether whole numbers stay whole.

    Raises:
        SampleError: There is something else than numbers, or a number that the type cannot hold.

    Example:
        >>> numbers([1, 2], None, "target", keep=True).dtype, numbers(1, torch.float32, "u").dtype
        (dtype('int64'), dtype('float32'))
    """
    if value is None:
        return None
    dtype = dtype or torch.get_default_dtype()
    # Numbers of types that NumPy does not have, such as bfloat16, go through doubles.
    of_numpy = _NUMPY.get(dtype, np.dtype("float64"))
    try:
        if _are_small(value):
            array = np.array(value, None if keep else of_numpy)
            array = array.astype(of_numpy) if keep and array.dtype.kind == "f" else array
        else:
            array = _large(value, of_numpy, dtype, keep)
    except _NO_NUMBER as error:
        raise SampleError(
            f"{what} cannot be a tensor ({error}). Send a number, or lists of numbers of equal lengths, or leave "
            'such samples out with bad="skip".'
        ) from error
    return array if dtype in _NUMPY or array.dtype.kind != "f" else _tensor(array).to(dtype)


def _large(value: Any, of_numpy: Any, dtype: torch.dtype, keep: bool) -> np.ndarray[Any, Any]:
    given = np.array(value)
    if given.dtype.kind not in "bif":
        raise ValueError(f"{shown(value)} is not made of numbers of at most 64 bits")
    if keep and given.dtype.kind != "f":
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        array = given.astype(of_numpy)
    fits = np.isfinite(array) if array.dtype.kind == "f" else array == np.trunc(given)
    if not fits.all():
        raise ValueError(f"{dtype} cannot hold {shown(value)}")
    return array


def _are_small(value: Any) -> bool:
    """Whether these are few numbers that any type can hold: Python has seen that before NumPy has begun."""
    if type(value) is int:
        return -128 < value < 128
    try:
        # NaN is not equal to itself, and makes the sum so.
        return type(value) is list and min(value) > -128 and max(value) < 128 and sum(value) == sum(value)
    except (TypeError, ValueError):
        return False
