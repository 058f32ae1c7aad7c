"""Who may ask: tokens from files, and on loopback no web page of another origin."""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path

from starlette.authentication import AuthCredentials, AuthenticationBackend, UnauthenticatedUser
from starlette.requests import HTTPConnection

from hamlearn.errors import ConfigError
from hamlearn.serve.forms import RequestError
from hamlearn.serve.settings import Settings, is_loopback

OPEN = ("/livez", "/readyz")
"""Paths that need no token: they say nothing but whether the server works."""
DELAY = 1.0
"""Seconds that a failed login waits for its answer."""
LEARN = "learn"
"""What a token allows beside predictions."""
_CLOSE = {"connection": "close"}

log = logging.getLogger("hamlearn.serve")


class Tokens:
    """The tokens of a file, one per line; the file is read again when it changes.

    Raises:
        ConfigError: The file cannot be read, or holds no token, or one that is too short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._tokens = self._read()

    def hold(self, token: bytes) -> bool:
        """Whether this is one of them; takes the same time for each wrong one."""
        try:
            if self._path.stat().st_mtime_ns != self._stamp:
                self._stamp, self._tokens = self._read()
                log.info("%s has changed: %d tokens are valid now", self._path, len(self._tokens))
        except (ConfigError, OSError) as error:
            log.warning("the tokens before stay valid: %s", error)
        return sum(hmac.compare_digest(token, known) for known in self._tokens) > 0

    def _read(self) -> tuple[int, list[bytes]]:
        try:
            stamp, tokens = self._path.stat().st_mtime_ns, self._path.read_bytes().split()
        except OSError as error:
            reason = f"cannot read the tokens in {self._path}: {error.strerror}. Create the file."
            raise ConfigError(reason) from error
        if not tokens or any(len(token) < 16 for token in tokens):
            raise ConfigError(
                f"{self._path} holds no token, or one of fewer than 16 characters. Write one per line, such as "
                "'openssl rand -hex 32' prints."
            )
        return stamp, tokens


class Access(AuthenticationBackend):
    """What a request may do, for Starlette's `AuthenticationMiddleware`.

    With token files, every request shows a token as `Authorization: Bearer TOKEN`. Without them the server listens
    on loopback alone, and a request must name this machine as its host: so a web page cannot reach the server
    under a name of its own.

    Attributes:
        failed: How many logins failed.
    """

    def __init__(self, settings: Settings) -> None:
        self.failed = 0
        files = map(settings.tokens, ("learn_tokens", "predict_tokens"))
        self._learn, self._predict = (None if path is None else Tokens(path) for path in files)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, UnauthenticatedUser]:
        """The scopes of a request; raises `RequestError` if it may do nothing."""
        host, origin = conn.headers.get("host", ""), conn.headers.get("origin")
        if "transfer-encoding" in conn.headers:
            # The HTTP parser keeps the trailers of a chunked body in memory, however many there are.
            reason = "a chunked body is not accepted. Send Content-Length; a proxy can buffer requests to know it."
            raise RequestError(411, reason, headers=_CLOSE)
        if self._learn is None and not is_loopback(_name(host)):
            reason = f"the host {host[:100]!r} is not loopback. Ask for 127.0.0.1 or localhost."
            raise RequestError(403, reason, headers=_CLOSE)
        if conn.scope.get("method") not in ("GET", "HEAD") and origin and origin.partition("://")[2] != host:
            raise RequestError(403, f"a page of {origin[:100]!r} may not do this here.", headers=_CLOSE)
        scopes = [LEARN]
        if self._learn is not None and conn.scope["path"] not in OPEN:
            kind, _, token = conn.headers.get("authorization", "").partition(" ")
            scopes = await self._login(self._learn, token.strip().encode() if kind.lower() == "bearer" else b"")
        return AuthCredentials(scopes), UnauthenticatedUser()

    async def _login(self, learn: Tokens, token: bytes) -> list[str]:
        """What the token that is shown allows."""
        if learn.hold(token):
            return [LEARN]
        if self._predict is not None and self._predict.hold(token):
            return []
        self.failed += 1
        await asyncio.sleep(DELAY)
        ask = {"www-authenticate": 'Bearer realm="hamlearn"', **_CLOSE}
        raise RequestError(401, "a token is missing or wrong. Send 'Authorization: Bearer TOKEN'.", headers=ask)


def require_learning(conn: HTTPConnection) -> None:
    """Raise `RequestError` if the token of a request does not allow learning."""
    if LEARN not in conn.auth.scopes:
        reason = "this token allows predictions only. Leave targets out, or use a token of serve.learn_tokens."
        raise RequestError(403, reason)


def _name(host: str) -> str:
    """The host without its port, and without the brackets of an IPv6 address."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
