"""Who may ask: clients that show a token; without tokens, this machine, but no web page of another origin."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

from starlette.authentication import AuthCredentials, AuthenticationBackend, UnauthenticatedUser
from starlette.requests import HTTPConnection

from hamlearn.errors import ConfigError
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings

OPEN = ("/livez", "/readyz")
"""Paths that need no token: they say nothing but whether the server works."""
LEARN = "learn"
"""What a token allows beside predictions."""


class Access(AuthenticationBackend):
    """What a request may do, for Starlette's `AuthenticationMiddleware`.

    With token files, every request shows a token as `Authorization: Bearer TOKEN`, or as the password of basic
    authentication, which browsers ask for. Without them the server listens on loopback alone.

    Args:
        settings: Of the server.

    Attributes:
        failed: How many logins failed.
    """

    def __init__(self, settings: Settings) -> None:
        self.failed = 0
        files = (settings.tokens(name) for name in ("learn_tokens", "predict_tokens"))
        self._learn, self._predict = (None if path is None else _tokens(path) for path in files)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, UnauthenticatedUser]:
        """The scopes of a request.

        Raises:
            Refused: It may do nothing.
        """
        host, origin = conn.headers.get("host", ""), conn.headers.get("origin")
        if conn.scope.get("method") not in ("GET", "HEAD") and origin and origin.partition("://")[2] != host:
            raise Refused(403, f"a page of {origin[:100]!r} may not do this here.")
        scopes = [LEARN]
        if self._learn is not None and conn.scope["path"] not in OPEN:
            scopes = self._login(self._learn, _shown(conn.headers.get("authorization", "")))
        return AuthCredentials(scopes), UnauthenticatedUser()

    def _login(self, learn: list[bytes], token: bytes) -> list[str]:
        """What the token that is shown allows."""
        if _one_of(token, learn):
            return [LEARN]
        if self._predict is not None and _one_of(token, self._predict):
            return []
        self.failed += 1
        ask = {"www-authenticate": 'Basic realm="hamlearn"'}
        raise Refused(401, "a token is missing or wrong. Send 'Authorization: Bearer TOKEN'.", headers=ask)


def require_learning(conn: HTTPConnection) -> None:
    """Refuse a request whose token does not allow learning."""
    if LEARN not in conn.auth.scopes:
        reason = "this token allows predictions only. Leave targets out, or use a token of serve.learn_tokens."
        raise Refused(403, reason)


def _tokens(path: Path) -> list[bytes]:
    """The tokens of a file, one per line."""
    try:
        tokens = path.read_bytes().split()
    except OSError as error:
        reason = f"cannot read the tokens in {path}: {error.strerror}. Create the file."
        raise ConfigError(reason) from error
    if not tokens or any(len(token) < 16 for token in tokens):
        raise ConfigError(
            f"{path} holds no token, or one of fewer than 16 characters. Write one per line, such as "
            "'openssl rand -hex 32' prints."
        )
    return tokens


def _one_of(token: bytes, tokens: list[bytes]) -> bool:
    # All are compared, so that each wrong token takes the same time.
    return sum(hmac.compare_digest(token, known) for known in tokens) > 0


def _shown(header: str) -> bytes:
    """The token of an `Authorization` header; empty if it has none."""
    kind, _, rest = header.partition(" ")
    if kind.lower() == "bearer":
        return rest.strip().encode()
    try:
        return base64.b64decode(rest, validate=True).partition(b":")[2] if kind.lower() == "basic" else b""
    except ValueError:
        return b""
