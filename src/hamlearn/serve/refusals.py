"""What a client is told where a request cannot be served: a status, a reason, and when to try again."""

from __future__ import annotations

BUSY = 1
"""Seconds after which a client that was refused for lack of room may try again."""


class Refused(Exception):  # noqa: N818 (most often the client's error, not ours)
    """A request that is not served; nothing has changed.

    Args:
        status: Of HTTP: 4xx where the request is at fault, 503 where the server has no room or no time.
        reason: Names the value, the cause and the remedy.
        retry: Seconds after which the same request may be served; `None` where it never will be.
        headers: Further headers.
        close: Whether the connection ends with the answer, because the rest of the request is not read.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        retry: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        close: bool = False,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry, self.close = status, reason, retry, close
        self.headers = headers
        if retry is not None:
            self.headers = (*self.headers, ("retry-after", str(retry)))
        if close:
            self.headers = (*self.headers, ("connection", "close"))
