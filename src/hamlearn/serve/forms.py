"""Request bodies: their models in JSON, and how they become arrays."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from hamlearn.errors import SampleError
from hamlearn.serve.batch import Batch, Kind, Layout
from hamlearn.serve.fields import Row
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings

JSON = "application/json"
CONTENT_TYPES = (JSON, "", "application/x-www-form-urlencoded")
"""Without a content type, or with what `curl -d` says unless asked otherwise, a body is JSON as well."""

Tau = Annotated[float, Meta(gt=0, le=1e9, description="Time step; left out: that of the learner.")]
Key = Annotated[str, Meta(min_length=1, max_length=200)] | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_NESTED = re.compile("got `(array|object)`")
"""What an object of lists is said to be if it is read as one sample."""


class Models(NamedTuple):
    """The bodies that a network takes: the classes that validate them, and that OpenAPI is generated from."""

    sample: Any
    samples: Any
    label: Any


def models(settings: Settings) -> Models:
    """Models of the bodies for the sizes and bounds of a server."""
    lists: Any = list
    several = Meta(min_length=1, max_length=settings.serve["batch"])
    u = Annotated[list[float], Meta(min_length=settings.inputs, max_length=settings.inputs)]
    target: Any = Annotated[list[float], Meta(min_length=settings.outputs, max_length=settings.outputs)]
    if settings.classes is not None:
        target = Annotated[int, Meta(ge=0, lt=settings.classes)]
    late: Any = target
    if settings.fields is not None and settings.fields.classes is not None:
        late = target | str
    elif settings.fields is not None and settings.outputs == 1:
        late = target | float
    one: dict[str, Any] = {"target": target | None, "tau": Tau | None, "boundary": bool | None, "id": Key | None}
    many = {name: Annotated[lists[hint], several] | None for name, hint in one.items()}
    return Models(
        _model("Sample", {"u": u}, one),
        _model("Samples", {"u": Annotated[lists[u], several]}, many),
        _model("Label", {"id": Key, "target": late}, {}),
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
        self.fields, self.models, self._most = settings.fields, models(settings), settings.serve["batch"]
        self._dtype = np.dtype(settings.config["run"]["dtype"])
        self._scale = settings.scale
        self._nothing: Any = [0.0] * settings.outputs if settings.classes is None else 0
        # Errors about named fields name the columns; an example with a vector would mislead.
        example = json.dumps({"u": [0.5] * min(settings.inputs, 3), "id": "a-1"})
        self._example = f" For example: {example}" if self.fields is None else ""

    def read(self, body: bytes, kind: Kind) -> Batch:
        """The samples or labels of a body: one object, a list of objects, or an object of lists."""
        one = self.models.label if kind == "labels" else self.models.sample
        try:
            if body.lstrip().startswith(b"["):
                lists: Any = list
                return self._from_rows(self._rows(body, kind, lists[one]), "rows", kind)
            try:
                return self._from_rows([self._rows(body, kind, one)], "one", kind)
            except msgspec.ValidationError as error:
                if kind == "labels" or not _NESTED.search(str(error)):
                    raise
                return self._from_columns(self._columns(body, error), kind)
        except (msgspec.ValidationError, SampleError) as error:
            raise self._wrong(str(error)) from error
        except RecursionError as error:
            raise Refused(400, "the body is nested too deeply. Send an object, or a list of objects.") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(400, f"the body is not JSON: {error}.{self._example}") from error

    def _rows(self, body: bytes, kind: Kind, model: Any) -> Any:
        """The object, or the objects, of a body; rows of named fields are encoded."""
        if self.fields is None or kind == "labels":
            return msgspec.json.decode(body, type=model)
        value = msgspec.json.decode(body)
        rows = value if isinstance(value, list) else [value]
        if all(isinstance(row, dict) and not isinstance(row.get("u"), list) for row in rows):
            self._require_count(len(rows))
            lists: Any = list
            samples = self.fields.samples(msgspec.convert(rows, lists[Row]))
            value = samples if isinstance(value, list) else samples[0]
        return msgspec.convert(value, model)

    def _columns(self, body: bytes, error: Exception) -> Any:
        """An object of lists; if it is not one, because its input is one vector, `error` is raised."""
        try:
            return msgspec.json.decode(body, type=self.models.samples)
        except msgspec.ValidationError as other:
            raise error if "Expected `array`" in str(other) and "$.u[0]" in str(other) else other from None

    def _from_rows(self, rows: list[Any], layout: Layout, kind: Kind) -> Batch:
        self._require_count(len(rows))
        names = ("target", "id") if kind == "labels" else ("target", "id", "u", "tau", "boundary")
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        if self.fields is not None and kind == "labels":
            columns["target"] = [self.fields.late(target) for target in columns["target"]]
        return self._batch(kind, layout, len(rows), columns)

    def _from_columns(self, value: Any, kind: Kind) -> Batch:
        count = len(value.u)
        columns = {
            name: column for name in value.__struct_fields__ if (column := getattr(value, name)) is not None
        }
        for name, column in columns.items():
            if len(column) != count:
                raise self._wrong(f"Expected `array` of length {count}, got {len(column)} - at `$.{name}`")
        return self._batch(kind, "columns", count, columns)

    def _batch(self, kind: Kind, layout: Layout, count: int, columns: dict[str, list[Any]]) -> Batch:
        nothing = [None] * count
        targets = columns.get("target", nothing)
        known = np.array([target is not None for target in targets])
        filled = targets if known.all() else [self._nothing if target is None else target for target in targets]
        whole = not isinstance(self._nothing, list)
        return Batch(
            kind,
            layout,
            self._table(columns["u"], "u") if "u" in columns else np.zeros((count, 0)),
            np.array(filled, np.int64) if whole else self._table(self._scaled(filled), "target"),
            known,
            np.array([math.nan if tau is None else tau for tau in columns.get("tau", nothing)]),
            np.array([bool(end) for end in columns.get("boundary", nothing)]),
            columns.get("id", nothing),
        )

    def _scaled(self, targets: Any) -> Any:
        """Targets as the learner sees them: those that never varied are 0, as in `streams.standardize`."""
        if self._scale is None:
            return targets
        mean, spread = self._scale
        return np.where(spread > 0, (np.array(targets) - mean) / np.where(spread > 0, spread, 1.0), 0.0)

    def _table(self, rows: Any, name: str) -> np.ndarray:
        with np.errstate(over="ignore"):
            table = np.array(rows, self._dtype)
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
        return Refused(422, f"{problem.rstrip('.')}.{self._example}")


def encode(value: Any) -> bytes:
    """A response body; JSON has no NaN and no infinity, they are written as null."""
    return msgspec.json.encode(value)
