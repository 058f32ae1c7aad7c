"""Why a request is not served: a status, a reason, and when to try again."""

from __future__ import annotations

BUSY = 1
"""Seconds after which a client may try again if too much is waiting."""


class Refused(Exception):  # noqa: N818 (most often the client's error, not ours)
    """A request that is not served; nothing has changed.

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
        self.status, self.reason, self.retry = status, reason, retry
        self.headers = dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)

    def body(self) -> dict[str, object]:
        """The response body."""
        return {"error": self.reason, "status": self.status} | (
            {} if self.retry is None else {"retry_after": self.retry}
        )
