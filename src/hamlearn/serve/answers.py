"""Sending answers: whole bodies with their length, refusals with their reason."""

from __future__ import annotations

from typing import Any

from hamlearn.serve.forms import Form, encode
from hamlearn.serve.refusals import Refused


async def send_body(
    send: Any, status: int, body: bytes, content_type: str, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    """Send an answer."""
    lines = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in headers),
    ]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_refused(send: Any, refused: Refused, form: Form) -> None:
    """Send the reason why a request is not served."""
    await send_body(send, refused.status, *encode(told(refused), form), headers=refused.headers)


def told(refused: Refused) -> dict[str, Any]:
    """A refusal as a body."""
    told: dict[str, Any] = {"error": refused.reason, "status": refused.status}
    if refused.retry is not None:
        told["retry_after"] = refused.retry
    return told
