"""The OpenAPI document of a server, and a plain page of it that needs no scripts."""

from __future__ import annotations

import html
from typing import Any

from hamlearn._version import __version__
from hamlearn.serve.forms import JSON, MSGPACK
from hamlearn.serve.settings import Settings

_REFUSALS = {
    "400": "The body cannot be read.",
    "401": "The token is missing or wrong.",
    "403": "The host is not loopback, and there is no token.",
    "406": "Neither form is accepted.",
    "408": "The body did not arrive in time.",
    "413": "The body, or the batch, is too large.",
    "415": "The content type is not known.",
    "422": "A value does not fit; nothing has changed.",
    "429": "Too many samples wait, or there are too many agents; see Retry-After.",
    "503": "No answer in time, or the server is stopping; see Retry-After.",
}


def document(settings: Settings) -> dict[str, Any]:
    """The document, with the sizes of this network and the bounds of this server."""
    network, serve = settings.config["network"], settings.serve
    vector = {"type": "array", "items": {"type": "number"}}
    u = {**vector, "minItems": network["inputs"], "maxItems": network["inputs"]}
    target: dict[str, Any] = {**vector, "minItems": network["outputs"], "maxItems": network["outputs"]}
    if settings.classes is not None:
        target = {"type": "integer", "minimum": 0, "maximum": settings.classes - 1}
    id = {"oneOf": [{"type": "string", "minLength": 1, "maxLength": 200}, {"type": "integer"}]}
    step = {"type": "number", "exclusiveMinimum": 0}
    flag = {"type": "boolean", "default": False}
    sample = {"u": u, "target": target, "tau": step, "boundary": flag, "id": id}
    label = {"id": id, "target": target}
    answer = {"y": vector, "loss": _maybe("number"), "t": {"type": "number"}, "sample": _maybe("integer")}
    schemas = {
        "Sample": _object(sample, ["u"]),
        "Samples": _object({name: _list(schema, serve["batch"]) for name, schema in sample.items()}, ["u"]),
        "Label": _object(label, ["id", "target"]),
        "Labels": _object(
            {name: _list(schema, serve["batch"]) for name, schema in label.items()}, ["id", "target"]
        ),
        "Answer": {"type": "object", "properties": {**answer, "learned": flag, "seen": flag, "skipped": flag}},
        "Refusal": {"type": "object", "properties": {"error": {"type": "string"}, "status": {"type": "integer"}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": settings.config["run"]["title"], "version": __version__},
        "paths": {
            "/predict": {"post": _taking("Answer to samples, and learn from those that have a target.", "Sample")},
            "/label": {"post": _taking("Learn the targets of earlier samples, by their ids.", "Label")},
            "/state": {
                "get": _asking("Position, time, norms, counts, and the sample that the checkpoint reaches.")
            },
            "/checkpoint": {"post": _asking("Write a checkpoint now.")},
            "/metrics": {
                "get": {"summary": "Counts and times for Prometheus.", "responses": _answers("text/plain")}
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if settings.token else [],
    }


def page(about: dict[str, Any]) -> str:
    """The document as a page."""
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(what['summary'])}</td></tr>"
        for path, methods in about["paths"].items()
        for method, what in methods.items()
    )
    codes = "".join(f"<tr><td>{code}</td><td>{html.escape(why)}</td></tr>" for code, why in _REFUSALS.items())
    title = html.escape(about["info"]["title"])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta name=color-scheme content='light dark'><title>{title}</title><h1>{title}</h1>"
        f"<table>{rows}<tr><td>WebSocket</td><td><code>/stream</code></td><td>Streams of samples and labels."
        "</td></tr></table><p>Schemas: <a href='openapi.json'>openapi.json</a>. Another learner: "
        f"<code>?agent=KEY</code>.</p><h2>What is refused</h2><table>{codes}</table></html>"
    )


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(schema: Any, most: int) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": most}


def _maybe(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_AGENT = {
    "name": "agent",
    "in": "query",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"},
}


def _taking(summary: str, name: str) -> dict[str, Any]:
    schema = {"oneOf": [_ref(name), _list(_ref(name), 1), _ref(f"{name}s")]}
    schema["oneOf"][1].pop("maxItems")
    body = {"required": True, "content": {form: {"schema": schema} for form in (JSON, MSGPACK)}}
    return {**_asking(summary), "requestBody": body}


def _asking(summary: str) -> dict[str, Any]:
    return {"summary": summary, "parameters": [_AGENT], "responses": _answers(JSON, MSGPACK)}


def _answers(*forms: str) -> dict[str, Any]:
    refusal = {JSON: {"schema": _ref("Refusal")}}
    good = {"description": "As asked.", "content": {form: {} for form in forms}}
    return {"200": good, **{code: {"description": why, "content": refusal} for code, why in _REFUSALS.items()}}
