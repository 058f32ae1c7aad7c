"""Who may ask: a token beyond loopback, and on loopback no web page of somebody else's."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any

from hamlearn.serve.answers import send_refused
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import is_loopback

_ASK = (("www-authenticate", 'Bearer realm="hamlearn"'), ("www-authenticate", 'Basic realm="hamlearn"'))


class Guard:
    """Lets through what may pass, and answers the rest itself; nothing behind it is reached.

    Where there is a token, every request has to show it, as `Authorization: Bearer TOKEN`, or as the password of
    basic authentication, which browsers ask for. Where there is none, the server listens on loopback alone, and a
    request must name this machine as its host: so a web page that the user happens to look at cannot reach the
    server under a name of its own.

    Args:
        app: What is guarded.
        token: What is to be shown; `None` where nothing is.
    """

    def __init__(self, app: Any, token: bytes | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request through, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._require(dict(scope["headers"]), websocket=scope["type"] == "websocket")
        except Refused as refused:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refused.reason[:100]})
            else:
                await send_refused(send, refused, "json")
            return
        await self._app(scope, receive, send)

    def _require(self, headers: dict[bytes, bytes], *, websocket: bool) -> None:
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        if self._token is not None:
            if not _shows(headers.get(b"authorization", b""), self._token):
                reason = "this server asks for its token. Send the header 'Authorization: Bearer TOKEN'."
                raise Refused(401, reason, headers=_ASK, close=True)
        elif not is_loopback(_name(host)):
            shown = host[:100].decode("latin-1")
            reason = f"the host {shown!r} is not this machine's loopback address. Ask for 127.0.0.1 or localhost."
            raise Refused(403, reason, close=True)
        # Browsers let any page open a WebSocket to anywhere, and say from where.
        if websocket and origin is not None and origin.partition(b"://")[2] != host:
            raise Refused(403, "a page of another origin may not open a stream here.", close=True)


def _name(host: bytes) -> str:
    """The host without its port, and without the brackets of an address of IPv6."""
    text = host.decode("latin-1")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _shows(header: bytes, token: bytes) -> bool:
    kind, _, rest = header.partition(b" ")
    shown = rest.strip()
    if kind.lower() == b"basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except binascii.Error:
            shown = b""
    elif kind.lower() != b"bearer":
        shown = b""
    return hmac.compare_digest(shown, token)
