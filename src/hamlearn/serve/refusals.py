"""Why a request is not served: a status, a reason, and when to try again."""

from __future__ import annotations

from starlette.authentication import AuthenticationError
from starlette.responses import JSONResponse, Response


class Refused(AuthenticationError):  # noqa: N818 (most often the client's error, not ours)
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
        self.status, self.reason, self.retry, self.headers = status, reason, retry, headers or {}

    def body(self) -> dict[str, object]:
        """The response body."""
        told: dict[str, object] = {"error": self.reason, "status": self.status}
        return told if self.retry is None else told | {"retry_after": self.retry}

    def response(self) -> Response:
        """The response."""
        wait = {} if self.retry is None else {"retry-after": str(self.retry)}
        return JSONResponse(self.body(), self.status, self.headers | wait)
