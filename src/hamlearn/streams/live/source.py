"""Feeds of a broker: what they send comes again until it is acknowledged."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from urllib.parse import SplitResult, quote, urlsplit

from hamlearn.errors import ConfigError, StreamError

When = Literal["saved", "learned"]

MOST = 65_535
"""The largest window that a source may have."""
PASSWORD = "HAMLEARN_FEED_PASSWORD"
"""The environment variable that holds the password if an address names a user and no password."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 30.0
"""Seconds between attempts to connect."""


class Source(ABC):
    """A feed whose messages are acknowledged, and come again after a restart if they were not.

    It is an iterable of `Letter`s in the order in which they were sent. It connects when it is iterated over, and
    connects again when a connection is lost. Messages come at least once: the learner's stream leaves out what
    comes again with the same id.

    Args:
        name: The address, without a password, for error messages.
        acknowledge: `"saved"`: once the learner that learned a message is in a checkpoint; or `"learned"`: once
            it was learned, for learners that are never saved.
        window: Messages that may wait for their acknowledgement.
        patience: Seconds without a connection after which the feed fails.
    """

    def __init__(self, name: str, acknowledge: When, window: int, patience: float) -> None:
        if acknowledge not in ("saved", "learned"):
            raise ConfigError(f'acknowledge={acknowledge!r} is not known. Give "saved" or "learned".')
        if not isinstance(window, int) or not 1 <= window <= MOST:
            raise ConfigError(f"window={window!r} is not allowed. Give a whole number of 1 to 65,535.")
        if not patience > 0:
            raise ConfigError(f"patience={patience!r} is not allowed. Give a number of seconds above 0.")
        self.name, self.when, self.window, self.patience = name, acknowledge, window, patience
        self._stopped = threading.Event()

    def open(self, token: str | None) -> None:
        """Say, before the first message is asked for, which one a checkpoint has as its last."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The letters, from the first that is not acknowledged on."""

    @abstractmethod
    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Acknowledge messages that were learned, in their order, from any thread."""

    def discard(self, tokens: Sequence[str]) -> None:
        """Acknowledge messages that will not be learned, though earlier ones may still wait."""
        self.acknowledge(tokens)

    def stop(self) -> None:
        """Wake the reader and let the connection go, from any thread."""
        self._stopped.set()

    def no_connection(self, seconds: float, problem: object) -> StreamError:
        """The error after `patience` seconds without a connection."""
        return StreamError(
            f"no lasting connection to {self.name} for {seconds:.1f} seconds ({problem}). Start the broker, "
            "correct the address, or raise `patience`; a run that is resumed continues where it was."
        )

    def attempts(self, lost: tuple[type[BaseException], ...]) -> Any:
        """Calls a function again after one of the errors `lost`, until patience ends, or the feed is stopped.

        Waits double, and are drawn at random, so that a thousand agents whose broker was restarted do not all come
        back in the same moment.
        """
        import tenacity
        from tenacity.nap import sleep_using_event

        def give_up(state: Any) -> None:
            if not self._stopped.is_set():
                problem = state.outcome.exception()
                raise self.no_connection(state.seconds_since_start, problem) from problem

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(lost),
            wait=tenacity.wait_random_exponential(FIRST_WAIT, LONGEST_WAIT),
            stop=tenacity.stop_after_delay(self.patience) | tenacity.stop_when_event_set(self._stopped),
            sleep=sleep_using_event(self._stopped),
            retry_error_callback=give_up,
        )


def split(address: str, schemes: Sequence[str], form: str) -> tuple[SplitResult, str]:
    """The parts of an address, with the password of the environment if it has none, and how it may be shown.

    Example:
        >>> split("mqtt://ann:secret@example.org/a/#", ["mqtt"], "mqtt://host/topic")[1]
        'mqtt://ann@example.org/a/#'
    """
    try:
        parts = urlsplit(address, allow_fragments=False)
        host, _ = parts.hostname, parts.port
    except (ValueError, TypeError, AttributeError):
        # The reason may quote the password.
        raise ConfigError(f"the address cannot be read. Write it as {form}.") from None
    shown = public(address)
    if parts.scheme not in schemes or not host:
        raise ConfigError(f"{shown!r} is not an address of this kind. Write it as {form}.")
    if parts.username and parts.password is None and PASSWORD in os.environ:
        user, _, place = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user}:{quote(os.environ[PASSWORD], safe='')}@{place}")
    return parts, shown


def public(address: str) -> str:
    """An address without its password, and without the query of a WebSocket, which may hold one.

    Example:
        >>> public("wss://ann:secret@example.org/feed?token=secret")
        'wss://ann@example.org/feed'
    """
    parts = urlsplit(address, allow_fragments=False)
    user, at, place = parts.netloc.rpartition("@")
    query = "" if parts.scheme in ("ws", "wss") else parts.query
    name = user.partition(":")[0]
    return parts._replace(netloc=f"{name}{at if name else ''}{place}", query=query).geturl()
