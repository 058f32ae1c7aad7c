"""Feeds of a broker: what they send comes again until it is acknowledged."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, quote, urlsplit

from hamlearn.errors import ConfigError, StreamError
from hamlearn.streams.live.wire import parse

When = Literal["saved", "learned"]

PASSWORD = "HAMLEARN_FEED_PASSWORD"
"""The variable of the environment that holds the password where an address names a user and none."""
LONGEST = 1 << 20
"""Bytes in the longest message that is read, as in the longest line of a socket."""


@dataclass(slots=True)
class Letter:
    """A message as it came.

    Args:
        data: Its bytes: a JSON object.
        place: How the source names it, for messages.
        token: What it is acknowledged by, the same when it comes again; `None` where it comes only once.
    """

    data: bytes
    place: str
    token: str | None = None

    def message(self) -> dict[str, Any]:
        """What it says.

        Raises:
            StreamError: It is no message, or too long.
        """
        if len(self.data) > LONGEST:
            raise StreamError(
                f"{self.place} is longer than {LONGEST} bytes. Send one sample per message, or leave such "
                'messages out with bad="skip".'
            )
        return parse(self.data, self.place)


class Source(ABC):
    """A feed that is told which of its messages are done with, and sends the others again after a restart.

    A message is done with once the learner that learned it is in a checkpoint (`acknowledge="saved"`). The tokens
    of all messages that were learned and not yet acknowledged are part of that checkpoint: those of them that come
    again after a restart are recognised and left out. So each message is learned once, wherever the process was
    killed.

    Args:
        name: The address, without a password, for messages.
        acknowledge: `"saved"`, or `"learned"`: once a message was learned, for learners that are never saved.
        window: Messages that may wait for their acknowledgement.
    """

    def __init__(self, name: str, acknowledge: When, window: int) -> None:
        if acknowledge not in ("saved", "learned"):
            raise ConfigError(f'acknowledge={acknowledge!r} is not known. Give "saved" or "learned".')
        if not isinstance(window, int) or not 1 <= window <= 65_535:
            raise ConfigError(f"window={window!r} is not allowed. Give a whole number of 1 to 65,535.")
        self.name, self.when, self.window = name, acknowledge, window

    @abstractmethod
    def open(self, known: Sequence[str]) -> None:
        """Say, before the first message is asked for, which ones a checkpoint has already."""

    @abstractmethod
    def __iter__(self) -> Iterator[Letter]:
        """The messages, in the order in which they were sent; connects, and connects again where that is lost."""

    @abstractmethod
    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Tell the broker that these are done with. From any thread; those it was told of before are ignored."""

    @abstractmethod
    def unconfirmed(self) -> list[str]:
        """Tokens of messages that are done with, of which nobody knows yet whether the broker has heard it."""

    @abstractmethod
    def holds(self, token: str) -> bool:
        """Whether a message has been received and not been acknowledged."""

    @abstractmethod
    def stop(self) -> None:
        """Wake the reader and let the connection go, from any thread."""


class Passed:
    """The tokens of what a feed has handed out, in order, since the broker was last told.

    Counted from the first message on, so that a feed that was put back by some messages, and hands them out again,
    says the same as before.
    """

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._bad: list[bool] = []
        self._first = 0

    def note(self, seen: int, tokens: Sequence[str], bad: Sequence[bool]) -> None:
        """So many had been handed out before these."""
        new = max(0, self._first + len(self._tokens) - seen)
        self._tokens += tokens[new:]
        self._bad += bad[new:]

    def until(self, seen: int) -> list[str]:
        """Those among the first `seen` of the feed."""
        return self._tokens[: max(0, seen - self._first)]

    def bad(self) -> list[str]:
        """Those of messages that were no samples."""
        return [token for token, bad in zip(self._tokens, self._bad, strict=True) if bad]

    def forget(self, tokens: Iterable[str]) -> None:
        """Leave out those at the beginning that the broker has been told of."""
        told, count = set(tokens), 0
        while count < len(self._tokens) and self._tokens[count] in told:
            count += 1
        del self._tokens[:count], self._bad[:count]
        self._first += count

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens)


def split(address: str, schemes: Sequence[str], form: str) -> tuple[SplitResult, str]:
    """The parts of an address, with the password of the environment where it has none, and how it may be shown.

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
        raise ConfigError(f"{shown!r} is no address of this kind. Write it as {form}.")
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
