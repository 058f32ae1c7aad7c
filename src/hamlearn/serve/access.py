"""Who may ask: tokens from files, and on loopback no web page of another origin."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
from pathlib import Path
from typing import Any

from starlette.responses import Response

from hamlearn.errors import ConfigError
from hamlearn.serve.forms import JSON, encode
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings, is_loopback

OPEN = ("/livez", "/readyz")
"""Paths that need no token: they say nothing but whether the server works."""
DELAY, DELAYED = 1.0, 32
"""Seconds that a failed login waits for its answer, and how many may wait at the same time."""

log = logging.getLogger("hamlearn.serve")


class Tokens:
    """The tokens of a file, one per line; the file is read again when it changes.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, or holds no token, or one that is too short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._seen()
        self._tokens = self._read()

    def holds(self, token: bytes) -> bool:
        """Whether this is one of them; takes the same time for each wrong one."""
        self._refresh()
        found = [hmac.compare_digest(token, known) for known in self._tokens]
        return any(found)

    def _refresh(self) -> None:
        try:
            if self._seen() != self._stamp:
                self._tokens, self._stamp = self._read(), self._seen()
                log.info("%s has changed: %d tokens are valid now", self._path, len(self._tokens))
        except (ConfigError, OSError) as error:
            log.warning("the tokens before stay valid: %s", error)

    def _seen(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise ConfigError(
                f"cannot read the tokens in {self._path}: {error.strerror}. Create the file."
            ) from error
        return status.st_mtime_ns, status.st_ino

    def _read(self) -> list[bytes]:
        tokens = self._path.read_bytes().split()
        if not tokens or any(len(token) < 16 for token in tokens):
            raise ConfigError(
                f"{self._path} holds no token, or one of fewer than 16 characters. Write one per line, such as "
                "'openssl rand -hex 32' prints."
            )
        return tokens


class Access:
    """ASGI middleware that lets a request pass or answers it; `scope["may_learn"]` says what it may do.

    With token files, every request shows a token as `Authorization: Bearer TOKEN`, or as the password of basic
    authentication, which browsers ask for. Without them the server listens on loopback alone, and a request must
    name this machine as its host: so a web page cannot reach the server under a name of its own.

    Args:
        app: The application.
        settings: Of the server.

    Attributes:
        failed: How many logins failed.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app, self.failed, self._delayed = app, 0, 0
        self._proxy = settings.serve["behind_proxy"]
        files = {name: settings.tokens(name) for name in ("learn_tokens", "predict_tokens")}
        self._tokens = {name: Tokens(path) for name, path in files.items() if path is not None}
        if "predict_tokens" in self._tokens and "learn_tokens" not in self._tokens:
            raise ConfigError(
                "serve.predict_tokens needs serve.learn_tokens: nothing could be learned without them."
            )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if b"transfer-encoding" in headers:
                # The HTTP parser keeps the trailers of a chunked body in memory, however many there are.
                reason = (
                    "a chunked body is not accepted. Send Content-Length; a proxy can buffer requests to know it."
                )
                raise Refused(411, reason, headers={"connection": "close"})
            if scope["path"] not in OPEN:
                self._require_origin(headers, scope["method"] if scope["type"] == "http" else "WEBSOCKET")
                scope["may_learn"] = await self._login(headers) if self._tokens else True
        except Refused as refused:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refused.reason[:100]})
            else:
                await refuse(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _require_origin(self, headers: dict[bytes, str], method: str) -> None:
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._tokens and not self._proxy and not is_loopback(_name(host)):
            reason = f"the host {host[:100]!r} is not loopback. Ask for 127.0.0.1 or localhost."
            raise Refused(403, reason, headers={"connection": "close"})
        if method not in ("GET", "HEAD") and origin is not None and origin.partition("://")[2] != host:
            raise Refused(
                403, f"a page of {origin[:100]!r} may not do this here.", headers={"connection": "close"}
            )

    async def _login(self, headers: dict[bytes, str]) -> bool:
        """Whether the token that is shown allows learning."""
        token = _shown(headers.get(b"authorization", ""))
        if self._tokens["learn_tokens"].holds(token):
            return True
        if "predict_tokens" in self._tokens and self._tokens["predict_tokens"].holds(token):
            return False
        self.failed += 1
        if self._delayed >= DELAYED:
            raise Refused(429, "too many logins failed at the same time. Try again later.", retry=int(DELAY))
        self._delayed += 1
        try:
            await asyncio.sleep(DELAY)
        finally:
            self._delayed -= 1
        ask = {"www-authenticate": 'Basic realm="hamlearn"', "connection": "close"}
        raise Refused(401, "a token is missing or wrong. Send 'Authorization: Bearer TOKEN'.", headers=ask)


def refuse(refused: Refused) -> Response:
    """A refusal as a response."""
    return Response(encode(refused.body()), refused.status, refused.headers, JSON)


def _name(host: str) -> str:
    """The host without its port, and without the brackets of an IPv6 address."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _shown(header: str) -> bytes:
    kind, _, rest = header.partition(" ")
    if kind.lower() == "bearer":
        return rest.strip().encode("latin-1")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
