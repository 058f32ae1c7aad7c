"""Messages of a feed: what a line of JSON, or an object of the same form, has to be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import SampleError, StreamError
from hamlearn.streams.values import require_whole, shown

LONGEST = 1 << 20
"""Bytes in the longest message that is read: a feed without line ends must not fill the memory."""
KEYS = ("u", "target", "t", "tau", "boundary", "id")
_KNOWN = frozenset(KEYS)
_LABEL = frozenset(("id", "target"))


@dataclass(slots=True)
class Letter:
    """A message, or a line, as it came.

    Args:
        data: Its bytes: a JSON object.
        place: How the source names it, for messages.
        token: What it is acknowledged by, the same when it comes again; `None` if it comes only once.
    """

    data: bytes
    place: str
    token: str | None = None

    def message(self) -> dict[str, Any]:
        """The object that it holds.

        Raises:
            StreamError: It is not a message, or too long.
        """
        if len(self.data) > LONGEST:
            raise StreamError(
                f"{self.place} is longer than {LONGEST} bytes. Send one sample per message, end lines with a line "
                'feed, or leave such messages out with bad="skip".'
            )
        return parse(self.data, self.place)


def parse(data: bytes, place: str) -> dict[str, Any]:
    """The object in a line, which may still be no message.

    Raises:
        StreamError: The line is no JSON object; says why.
    """
    try:
        item = _DECODER.decode(data.decode("utf-8").removeprefix("\ufeff"))
    except RecursionError as error:
        raise _bad_line(place, "it is nested too deeply", data) from error
    except ValueError as error:
        raise _bad_line(place, str(error), data) from error
    if not isinstance(item, dict):
        raise _bad_line(place, f"it is a {type(item).__name__}, not an object", data)
    return item


def _bad_line(place: str, problem: str, data: bytes) -> StreamError:
    start = data[:80].decode("utf-8", "replace").rstrip("\n")
    return StreamError(
        f"{place} is no sample: {problem}, in {start!r}. Send objects like "
        '{"u": [0.1], "target": [1.0], "t": 0.5}, or leave bad lines out with bad="skip".'
    )


def require_message(item: Mapping[str, Any], place: str) -> None:
    """Refuse a mapping that is no message."""
    problem = _problem(item)
    if problem:
        raise SampleError(
            f"{place} is no sample: {problem}. Send objects like "
            '{"u": [0.1], "target": [1.0], "t": 0.5}, or leave bad ones out with bad="skip".'
        )


def tau_of(value: Any, place: str) -> float | None:
    """The time step that a message says; `None` where it says none."""
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
            f"tau={shown(said)} at {place} is no time step. Send a positive, finite number, or leave such samples "
            'out with bad="skip".'
        )
    return tau


def tensor_of(value: Any, dtype: torch.dtype | None, name: str, place: str) -> Tensor | None:
    """Numbers of a message as a tensor, all of them finite."""
    if value is None:
        return None
    try:
        tensor = torch.tensor(value, dtype=dtype)
        require_whole(tensor, value)
        # Most messages are short lists of numbers: Python is done with them before PyTorch has begun.
        finite = _is_small(value) or bool(tensor.isfinite().all())
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise SampleError(
            f"{name} at {place} is no tensor ({error}). Send a number, or lists of numbers of equal lengths."
        ) from error
    if not finite:
        raise SampleError(
            f"{name} at {place} has a number that {tensor.dtype} cannot hold: {shown(value)}. Send smaller ones, "
            'or leave such samples out with bad="skip".'
        )
    return tensor


def is_label(item: Mapping[str, Any]) -> bool:
    """Whether a message is the label of an earlier sample: it has an id, and no input."""
    return "id" in item and "u" not in item


def _problem(item: Mapping[str, Any]) -> str | None:
    if item.get("id") is not None and type(item["id"]) not in (str, int):
        return f"its id is {shown(item['id'])}, neither a text nor a whole number"
    if is_label(item):
        if item["id"] is None or item.get("target") is None:
            return "it has no u, and a label needs an id and a target"
        if not item.keys() <= _LABEL:
            return f"it is a label, which has no {shown(min(str(key) for key in item.keys() - _LABEL))}"
        return None
    if item.get("u") is None:
        return "its u is null" if "u" in item else "it has no u"
    if not item.keys() <= _KNOWN:
        unknown = sorted(str(key) for key in item.keys() - _KNOWN)
        return f"it has the unknown key {shown(unknown[0])} (known are {', '.join(KEYS)})"
    if not isinstance(item.get("boundary", False), bool):
        return f"its boundary is {shown(item['boundary'])}, neither true nor false"
    return None


def _is_small(value: Any) -> bool:
    if type(value) is not list:
        return False
    try:
        # What is no number is not equal to itself, and makes the sum so.
        return min(value) > -1e38 and max(value) < 1e38 and sum(value) == sum(value)
    except (TypeError, ValueError):
        return False


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        raise ValueError("it has a key twice")
    return item


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_no_doubles)
