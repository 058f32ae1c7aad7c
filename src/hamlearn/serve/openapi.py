"""The OpenAPI document of a server, generated from its endpoints and the models of their bodies."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from hamlearn._version import __version__
from hamlearn.serve.forms import JSON, Reader
from hamlearn.serve.routes import Endpoint
from hamlearn.serve.settings import Settings


class Refusal(msgspec.Struct):
    """The response to a request that is not served."""

    error: str
    status: int
    retry_after: int | None = None


def document(settings: Settings, endpoints: Sequence[Endpoint], reader: Reader) -> dict[str, Any]:
    """The document, with the sizes of this network and the bounds of this server."""
    models = (reader.sample, reader.label, Refusal)
    refs, schemas = msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")
    bodies = {"Sample": [refs[0]], "Label": [refs[1]]}
    if reader.fields is not None:
        cell = {"type": ["string", "number", "boolean", "null"]}
        about = f"Named fields: the input columns, and the target columns {reader.fields.targets}."
        schemas["Row"] = {"type": "object", "additionalProperties": cell, "description": about}
        bodies["Sample"].append({"$ref": "#/components/schemas/Row"})
    refusal = {"description": "Why not.", "content": {JSON: {"schema": refs[2]}}}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation: dict[str, Any] = {
            "summary": (inspect.getdoc(endpoint.function) or "").partition("\n")[0],
            "parameters": [{"name": "agent", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "As asked."}, "default": refusal},
        }
        if endpoint.body:
            one = bodies[endpoint.body]
            several = {"type": "array", "items": {"anyOf": one}, "maxItems": settings.serve["batch"]}
            operation["requestBody"] = {"content": {JSON: {"schema": {"anyOf": [*one, several]}}}}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": settings.config["run"]["title"], "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}] if settings.serve["learn_tokens"] is not None else [],
    }
