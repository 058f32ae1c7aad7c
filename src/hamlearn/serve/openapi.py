"""The OpenAPI document of a server, generated from its endpoints and the models of their bodies."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from hamlearn._version import __version__
from hamlearn.serve.forms import JSON, MSGPACK, Reader
from hamlearn.serve.settings import Settings


class Refusal(msgspec.Struct, omit_defaults=True):
    """The response to a request that is not served."""

    error: str
    status: int
    retry_after: int | None = None


def document(settings: Settings, endpoints: Sequence[Any], reader: Reader) -> dict[str, Any]:
    """The document, with the sizes of this network and the bounds of this server."""
    names = ("Sample", "Samples", "Label", "Labels")
    found, schemas = msgspec.json.schema_components(
        [*reader.models, Refusal], ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip(names, found, strict=False))
    if reader.fields is not None:
        cell = {"type": ["string", "number", "boolean", "null"]}
        about = f"A row of named fields: the input columns, and {', '.join(reader.fields.targets) or 'no target'}."
        schemas["Row"] = {"type": "object", "additionalProperties": cell, "description": about}
        refs["Row"] = {"$ref": "#/components/schemas/Row"}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation = {
            "summary": (inspect.getdoc(endpoint.function) or "").partition("\n")[0],
            "parameters": [{"name": "agent", "in": "query", "schema": {"type": "string"}}],
            "responses": {
                "200": {"description": "As asked."},
                "default": {"description": "The reason why not.", "content": {JSON: {"schema": found[-1]}}},
            },
        }
        if endpoint.body:
            one = [refs[name] for name in (endpoint.body[0], *(["Row"] if "Row" in refs else []))]
            several = {"type": "array", "minItems": 1, "maxItems": settings.serve["batch"]}
            schema = {"anyOf": [*one, *({**several, "items": ref} for ref in one), refs[endpoint.body[1]]]}
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}, MSGPACK: {}}}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    secured = settings.serve["learn_tokens"] is not None
    return {
        "openapi": "3.1.0",
        "info": {"title": settings.config["run"]["title"], "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}] if secured else [],
    }
