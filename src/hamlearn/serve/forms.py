"""Request and response bodies: models of JSON and MessagePack, and how they become arrays."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from hamlearn.errors import SampleError
from hamlearn.serve.batch import Batch, Kind
from hamlearn.serve.fields import Row
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings

Form = Literal["json", "msgpack"]
JSON, MSGPACK = "application/json", "application/msgpack"
NAMES: dict[Form, str] = {"json": JSON, "msgpack": MSGPACK}
_FORMS: dict[str, Form] = {
    JSON: "json",
    "": "json",
    "application/x-www-form-urlencoded": "json",  # what curl -d says unless asked otherwise
    MSGPACK: "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}
_LISTS = {"json": b"[", "msgpack": bytes([*range(0x90, 0xA0), 0xDC, 0xDD])}
"""First bytes of a list."""
_NESTED = re.compile("got `(array|object)`")
"""What an object of lists is said to be if it is read as one sample."""

Step = Annotated[float, Meta(gt=0, le=1e18, description="Time step; left out: that of the learner.")]
Key = Annotated[str, Meta(min_length=1, max_length=200)] | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Array(Struct, forbid_unknown_fields=True):
    """An array: its type, its shape, and its numbers as they lie in memory, little-endian."""

    dtype: Literal["<f4", "<f8", "<i8"]
    shape: Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 32)]], Meta(min_length=1, max_length=2)]
    data: bytes

    def read(self) -> np.ndarray:
        """As NumPy's array."""
        count, size = int(np.prod([float(n) for n in self.shape])), np.dtype(self.dtype).itemsize
        if count * size != len(self.data):
            reason = f"an array of shape {self.shape} and dtype {self.dtype} needs {count * size} bytes"
            raise Refused(422, f"{reason}, got {len(self.data)}.")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Models(NamedTuple):
    """The bodies that a network takes; OpenAPI is generated from these classes."""

    sample: Any
    samples: Any
    label: Any


def models(inputs: int, outputs: int, classes: int | None, batch: int) -> Models:
    """Models of the bodies for a network of these sizes.

    Args:
        inputs: Entries of an input.
        outputs: Entries of a target that is a vector.
        classes: How many classes there are, if targets are classes; else `None`.
        batch: Samples of one request at most.
    """
    some: Any = Meta(min_length=1, max_length=batch)
    u: Any = Annotated[list[float], Meta(min_length=inputs, max_length=inputs)]
    target: Any = Annotated[list[float], Meta(min_length=outputs, max_length=outputs)]
    if classes is not None:
        target = Annotated[int, Meta(ge=0, lt=classes)]
    one = {"target": target | None, "tau": Step | None, "boundary": bool | None, "id": Key | None}
    lists: Any = list
    many: dict[str, Any] = {name: Annotated[lists[hint], some] | None for name, hint in one.items()}
    many["target"] = many["target"] | Array
    return Models(
        _model("Sample", {"u": u}, one),
        _model("Samples", {"u": Annotated[list[u], some] | Array}, many),
        _model("Label", {"id": Key, "target": target}, {}),
    )


def _model(name: str, required: dict[str, Any], optional: dict[str, Any]) -> Any:
    fields: list[Any] = [*required.items(), *((key, hint, None) for key, hint in optional.items())]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True)


class Reader:
    """Turns bodies into batches whose arrays fit the network.

    Args:
        settings: Sizes of the network, types, bounds, and the encoder of named fields.
    """

    def __init__(self, settings: Settings) -> None:
        self._most, self._classes, self.fields = settings.serve["batch"], settings.classes, settings.fields
        self._dtype = np.dtype(settings.config["run"]["dtype"])
        self._widths = {"u": settings.inputs, "target": settings.outputs}
        self.models = models(settings.inputs, settings.outputs, settings.classes, self._most)
        self._example = json.dumps({"u": [0.5] * min(settings.inputs, 3), "id": "a-1"})

    def read(self, body: bytes, form: Form, kind: Kind) -> Batch:
        """The samples or labels of a body: one object, a list of objects, or an object of lists."""
        try:
            start = body.lstrip()[:1] if form == "json" else body[:1]
            if start and start in _LISTS[form]:
                return self._from_rows(self._rows(body, form, kind, list), "rows", kind)
            try:
                return self._from_rows(self._rows(body, form, kind), "one", kind)
            except msgspec.ValidationError as error:
                if kind == "labels" or not _NESTED.search(str(error)):
                    raise
                return self._from_columns(self._columns(body, form, error), kind)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from error
        except RecursionError as error:
            raise Refused(400, "the body is nested too deeply. Send an object, or a list of objects.") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(400, f"the body is not {form.upper()}: {error}. For example: {self._example}") from error

    def _rows(self, body: bytes, form: Form, kind: Kind, several: Any = None) -> list[Any]:
        """The objects of a body, one or `several`; rows of named fields are encoded."""
        one = self.models.label if kind == "labels" else self.models.sample
        model = one if several is None else several[one]
        if self.fields is None or kind == "labels":
            found = _decode(body, form, model)
            return [found] if several is None else found
        value = _decode(body, form, Any)
        rows = [value] if several is None else value
        if any(not isinstance(row, dict) or isinstance(row.get("u"), list | dict) for row in rows):
            found = msgspec.convert(value, model)
            return [found] if several is None else found
        self._require_count(len(rows))
        samples = []
        for index, row in enumerate(rows):
            try:
                samples.append(msgspec.convert(self.fields.sample(msgspec.convert(row, Row)), one))
            except (SampleError, msgspec.ValidationError) as error:
                raise Refused(422, f"row {index}: {error}") from error
        return samples

    def _columns(self, body: bytes, form: Form, error: Exception) -> Any:
        """An object of lists; if it is not one, because its input is one vector, `error` is raised."""
        try:
            return _decode(body, form, self.models.samples)
        except msgspec.ValidationError as other:
            raise error if "Expected `array`" in str(other) and "$.u[0]" in str(other) else other from None

    def _from_rows(self, rows: list[Any], layout: Literal["one", "rows"], kind: Kind) -> Batch:
        self._require_count(len(rows))
        if kind == "labels":
            u, taus, ends = np.zeros((len(rows), 0)), [None] * len(rows), [None] * len(rows)
        else:
            u = self._table([row.u for row in rows], "u")
            taus, ends = [row.tau for row in rows], [row.boundary for row in rows]
        targets, known = self._targets([row.target for row in rows])
        return _batch(kind, layout, u, targets, known, taus, ends, [row.id for row in rows])

    def _from_columns(self, value: Any, kind: Kind) -> Batch:
        packed = isinstance(value.u, Array)
        u = self._table(value.u.read() if packed else value.u, "u")
        self._require_count(len(u))
        given = value.target.read() if isinstance(value.target, Array) else value.target
        columns: list[Any] = [
            [None] * len(u) if column is None else column
            for column in (given, value.tau, value.boundary, value.id)
        ]
        for name, column in zip(("target", "tau", "boundary", "id"), columns, strict=True):
            if len(column) != len(u):
                raise self._wrong(f"Expected `array` of length {len(u)}, got {len(column)} - at `$.{name}`")
        targets, known = self._targets(columns[0])
        taus, ends, ids = columns[1:]
        return _batch(kind, "columns", u, targets, known, taus, ends, ids, packed)

    def _targets(self, given: Any) -> tuple[np.ndarray, np.ndarray]:
        """Targets of all, zeros for samples without one; and which samples have one."""
        if isinstance(given, np.ndarray):
            known = np.ones(len(given), bool)
        else:
            known = np.array([value is not None for value in given])
            nothing: Any = [0.0] * self._widths["target"] if self._classes is None else 0
            given = given if known.all() else [nothing if value is None else value for value in given]
        if self._classes is None:
            return self._table(given, "target"), known
        table = np.asarray(given)
        if table.ndim != 1 or table.dtype.kind != "i" or table.min() < 0 or table.max() >= self._classes:
            raise self._wrong(f"Expected class numbers 0 to {self._classes - 1} - at `$.target`")
        return table.astype(np.int64), known

    def _table(self, rows: Any, name: str) -> np.ndarray:
        """Rows of finite numbers, as wide as the network takes them."""
        with np.errstate(over="ignore"):
            table = np.array(rows, self._dtype)
        width = self._widths[name]
        if table.ndim != 2 or table.shape[1] != width:
            raise self._wrong(f"Expected rows of {width} numbers, got shape {list(table.shape)} - at `$.{name}`")
        finite = np.isfinite(table)
        if not finite.all():
            index = int(np.flatnonzero(~finite.all(axis=1))[0])
            raise self._wrong(f"{name} of number {index} holds a number that {self._dtype} cannot hold")
        return table

    def _require_count(self, count: int) -> None:
        if count == 0:
            raise self._wrong("the list is empty")
        if count > self._most:
            raise Refused(413, f"{count} samples are more than serve.batch = {self._most}. Send several requests.")

    def _wrong(self, problem: str) -> Refused:
        return Refused(422, f"{problem}. For example: {self._example}")


def _batch(
    kind: Kind, layout: Any, u: Any, target: Any, known: Any, taus: Any, ends: Any, ids: Any, packed: bool = False
) -> Batch:
    tau = np.array([math.nan if tau is None else tau for tau in taus])
    return Batch(kind, layout, packed, u, target, known, tau, np.array([bool(end) for end in ends]), list(ids))


def _decode(body: bytes, form: Form, model: Any) -> Any:
    return (msgspec.json if form == "json" else msgspec.msgpack).decode(body, type=model)


def form_of(content_type: str) -> Form:
    """The format of a body, from its `Content-Type`; JSON if the header is missing or says what curl says."""
    form = _FORMS.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        raise Refused(415, f"the content type {content_type[:100]!r} is not known. "
                           f"Add the header 'Content-Type: {JSON}' or '{MSGPACK}'.")  # fmt: skip
    return form


def accepted(accept: str, form: Form) -> Form:
    """The format of a response: what `Accept` names, else that of the request."""
    if "msgpack" in accept.lower():
        return "msgpack"
    return "json" if "json" in accept.lower() else form


def encode(value: Any, form: Form) -> bytes:
    """A response body; JSON has no NaN and no infinity, they are written as null."""
    if form == "msgpack":
        return msgspec.msgpack.encode(value, enc_hook=array)
    return msgspec.json.encode(value, enc_hook=lambda found: found.tolist())


def array(value: np.ndarray) -> dict[str, Any]:
    r"""An array as MessagePack carries it: type, shape, and the numbers as they lie in memory.

    Example:
        >>> array(np.zeros((1, 2), np.float32))
        {'dtype': '<f4', 'shape': [1, 2], 'data': b'\x00\x00\x00\x00\x00\x00\x00\x00'}
    """
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"dtype": little.dtype.str, "shape": list(little.shape), "data": little.tobytes()}
