"""Requests and answers: batches read from bodies, and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.authentication import AuthenticationError
from starlette.responses import Response

from hamlearn.errors import SampleError
from hamlearn.serve.fields import Row
from hamlearn.serve.settings import Settings

JSON = "application/json"
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
Kind = Literal["samples", "labels", "evaluate"]
Tau = Annotated[float, Meta(gt=0, le=1e9, description="Time step; left out: that of the learner.")]
Key = Annotated[str, Meta(min_length=1, max_length=200)] | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Refusal(msgspec.Struct, omit_defaults=True):
    """The body of a response to a request that is not served."""

    error: str
    status: int
    retry_after: int | None = None


class RequestError(AuthenticationError):
    """A request that is not served; nothing has changed. Starlette asks for this base of a failed login.

    Args:
        status: HTTP status, 4xx for a mistake of the client, 503 if the server cannot answer now.
        reason: Names the value, the cause and the remedy.
        retry: Seconds after which the same request may succeed; `None` if it never will.
        headers: Further headers of the response.
    """

    def __init__(
        self, status: int, reason: str, retry: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.body, self.headers = Refusal(reason, status, retry), dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)

    def response(self) -> Response:
        """The response."""
        return answer(self.body, self.body.status, self.headers)


@dataclass(slots=True, eq=False)
class Batch:
    """The samples, or the labels, of one request.

    Attributes:
        kind: `"evaluate"` is for samples that move nothing.
        rows: One for each sample or label, with the fields of its model.
        single: Whether the body was one object, not a list.
        agent: Key of the learner.
        answers: What became of each.
    """

    kind: Kind
    rows: list[Any]
    single: bool
    agent: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def learns(self) -> bool:
        """Whether anything is to be learned from it."""
        return self.kind == "labels" or (
            self.kind == "samples" and any(row.target is not None for row in self.rows)
        )

    def response(self) -> Any:
        """The response in the layout of the request."""
        if all("error" in one for one in self.answers):
            raise RequestError(422, self.answers[0]["error"])
        return self.answers[0] if self.single else self.answers


class Reader:
    """Turns bodies into batches that fit the network.

    Args:
        settings: Sizes of the network, bounds, and the encoder of named fields.
    """

    def __init__(self, settings: Settings) -> None:
        self.fields, classes = settings.fields, settings.classes
        u = Annotated[list[float], Meta(min_length=settings.inputs, max_length=settings.inputs)]
        target: Any = Annotated[list[float], Meta(min_length=settings.outputs, max_length=settings.outputs)]
        if classes is not None:
            target = Annotated[int, Meta(ge=0, lt=classes)]
        late: Any = target
        if self.fields is not None:
            # A label of named fields is the name of a class, or one number.
            late = target | str if self.fields.classes is not None else target | float
        optional: dict[str, Any] = {"target": target, "tau": Tau, "boundary": bool, "id": Key}
        options = [(name, hint | None, None) for name, hint in optional.items()]
        # Values of JSON are in no cycles, which the garbage collector would look for.
        model = partial(msgspec.defstruct, forbid_unknown_fields=True, gc=False)
        self.sample = model("Sample", [("u", u), *options])
        self.label = model("Label", [("id", Key), ("target", late)])
        self._several = Meta(min_length=1, max_length=settings.serve["batch"])
        # Errors about named fields name the columns; an example with a vector would mislead.
        example = json.dumps({"u": [0.5] * min(settings.inputs, 3), "id": "a-1"})
        self._example = f" For example: {example}" if self.fields is None else ""

    def read(self, body: bytes, kind: Kind, agent: str = "") -> Batch:
        """The samples or labels of a body: one object, or a list of objects.

        Raises:
            RequestError: With what does not fit, and its place.
        """
        single = not body.lstrip().startswith(b"[")
        one: Any = self.label if kind == "labels" else self.sample
        model: Any = one if single else Annotated[list[one], self._several]
        try:
            if self.fields is None or kind == "labels":
                value = msgspec.json.decode(body, type=model)
            else:
                value = msgspec.convert(self._encoded(msgspec.json.decode(body)), model)
            rows = [value] if single else value
            if self.fields is not None and kind == "labels":
                rows = [self.label(row.id, self.fields.late(row.target)) for row in rows]
            return Batch(kind, rows, single, agent)
        except (msgspec.ValidationError, SampleError) as error:
            raise RequestError(422, f"{str(error)[:500].rstrip('.')}.{self._example}") from error
        except RecursionError as error:
            raise RequestError(
                400, "the body is nested too deeply. Send an object, or a list of objects."
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestError(400, f"the body is not JSON: {error}.{self._example}") from error

    def _encoded(self, value: Any) -> Any:
        """Rows of named fields as samples; samples that are vectors already are left as they are."""
        rows: Any = value if isinstance(value, list) else [value]
        if self.fields is None or any(not isinstance(row, dict) or isinstance(row.get("u"), list) for row in rows):
            return value
        several: Any = Annotated[list[Row], self._several]
        samples = [self.fields.sample(row) for row in msgspec.convert(rows, several)]
        return samples if isinstance(value, list) else samples[0]


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a JSON body. JSON has no NaN and no infinity, they are written as null."""
    return Response(msgspec.json.encode(value), status, HEADERS | (headers or {}), JSON)
