"""The two forms of a body: JSON, and MessagePack with arrays as bytes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgpack
import numpy as np
import orjson

from hamlearn.serve.refusals import Refused
from hamlearn.streams.values import shown

Form = Literal["json", "msgpack"]

JSON, MSGPACK = "application/json", "application/msgpack"
_FORMS: dict[str, Form] = {
    JSON: "json",
    MSGPACK: "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}
_NAMES: dict[Form, str] = {"json": JSON, "msgpack": MSGPACK}
_TYPES = ("<f4", "<f8", "<i8")
_ARRAY = {"dtype", "shape", "data"}


def form_of(content_type: str) -> Form:
    """The form of a body, by the header that says it."""
    form = _FORMS.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        raise Refused(
            415, f"the content type {shown(content_type)} is not known. Send {JSON} or {MSGPACK}, and say so."
        )
    return form


def accepted(accept: str, form: Form) -> Form:
    """The form of an answer: what the client accepts first, or the form of its request."""
    if not accept:
        return form
    for part in accept.lower().split(","):
        name, _, rest = part.partition(";")
        if rest.replace(" ", "") in ("q=0", "q=0.0"):
            continue
        if name.strip() in ("", "*/*", "application/*"):
            return form
        if name.strip() in _FORMS:
            return _FORMS[name.strip()]
    raise Refused(406, f"none of {shown(accept)} can be answered in. Accept {JSON} or {MSGPACK}.")


def decode(data: bytes, form: Form) -> Any:
    """What a body says, in lists, dicts, texts and numbers, and arrays where MessagePack brings some."""
    try:
        if form == "json":
            return _from_json(data)
        return msgpack.unpackb(data, object_pairs_hook=_object_or_array)
    except RecursionError as error:
        raise Refused(400, "the body is nested too deeply. Send an object, or a list of objects.") from error
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not {_WORDS[form]}: {error}. Send texts in UTF-8.") from error
    except (ValueError, msgpack.UnpackException, TypeError, OverflowError) as error:
        raise Refused(
            400, f"the body is not {_WORDS[form]}: {str(error)[:200] or type(error).__name__}. Send it whole."
        ) from error


def encode(value: Any, form: Form) -> tuple[bytes, str]:
    """A body, and its content type."""
    if form == "msgpack":
        return msgpack.packb(value, default=_packed), MSGPACK
    # JSON has no numbers that are not finite: they are written as null.
    return orjson.dumps(value, default=_listed), JSON


def array(value: np.ndarray) -> dict[str, Any]:
    r"""An array as MessagePack carries it: type, shape, and the numbers as they lie in memory.

    Example:
        >>> array(np.zeros((1, 2), np.float32))
        {'dtype': '<f4', 'shape': [1, 2], 'data': b'\x00\x00\x00\x00\x00\x00\x00\x00'}
    """
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"dtype": little.dtype.str, "shape": list(little.shape), "data": little.tobytes()}


def _from_json(data: bytes) -> Any:
    """What a body in JSON says; no key twice, no number that JSON does not have."""
    try:
        value = orjson.loads(data)
        # Of a key that comes twice the fast parser keeps the last, so the keys are counted in the text.
        if _keys(value) == sum(map(bool, _TEXTS.findall(data))):
            return value
    except orjson.JSONDecodeError:
        pass
    # The strict parser says what is wrong, and takes what is rare: half letters, numbers beyond all bounds.
    return _STRICT.decode(data.decode("utf-8").removeprefix("\ufeff"))


def _keys(value: Any) -> int:
    """How many keys a request has: an object, or a list of objects."""
    rows = value if isinstance(value, list) else [value]
    return sum(len(row) for row in rows if isinstance(row, dict))


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        raise ValueError("it has a key twice")
    return item


def _object_or_array(pairs: list[tuple[Any, Any]]) -> Any:
    item = _object(pairs)
    return _unpacked(item) if item.keys() == _ARRAY else item


def _unpacked(item: Mapping[str, Any]) -> np.ndarray:
    dtype, shape, data = item["dtype"], item["shape"], item["data"]
    if dtype not in _TYPES:
        raise ValueError(f"an array has the dtype {shown(dtype)}, and {', '.join(_TYPES)} are known")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 32 for n in shape):
        raise ValueError(f"an array has the shape {shown(shape)}, which is no list of sizes")
    if len(shape) > 2 or not isinstance(data, bytes):
        raise ValueError("an array has more than two axes, or no bytes as its data")
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size != len(data):
        raise ValueError(f"an array of shape {shape} and dtype {dtype} takes {size} bytes, and has {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape)


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return array(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # With all digits of a double, as single numbers are written.
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


_WORDS: dict[Form, str] = {"json": "JSON", "msgpack": "MessagePack"}
_STRICT = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_object)
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?')
"""Every text of a body in JSON, and the colon after those that are keys."""
