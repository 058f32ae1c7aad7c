"""Entries of a Redis stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.messages import Letter
from hamlearn.streams.live.source import FIRST_WAIT, Source, When, split

FORM = "redis://user:password@host:6379/key, or rediss:// for TLS, with ?db=1 for another database"
FIELD = b"data"
"""The field of an entry that holds the message."""
AT_ONCE, BYTES = 64, 16 << 20
"""Entries that are asked for at one time, and bytes that they should have: of large ones fewer are asked for."""
PAUSE = 200
"""Milliseconds that the server waits for an entry before it answers: so long may stopping take."""


def redis(
    address: str,
    group: str,
    consumer: str = "hamlearn",
    acknowledge: When = "saved",
    window: int = 10_000,
    patience: float = 60.0,
    timeout: float = 10.0,
) -> RedisSource:
    """Entries of a Redis stream, read as a consumer of a group, for `hl.streams.live`; needs `hamlearn[redis]`.

    An entry has one field `data` with a JSON object, as in a line of `tcp://`: `XADD key * data '{"u": [0.1]}'`.
    A group that does not exist is made, and begins with the first entry that the stream has.

    Args:
        address: `redis://host/key`, `rediss://` for TLS.
        group: Name of the consumer group. Each group gets every entry: give each agent a group of its own.
        consumer: Name within the group, the same after a restart.
        acknowledge: When the group may forget an entry: `"saved"`, once it is in a checkpoint; or `"learned"`, for
            learners that are never saved.
        window: Entries that may wait for that. No more are learned, so that a learner has to be saved at least
            every `window` entries; `hamlearn run` sees to it.
        patience: Seconds without a connection after which the feed fails.
        timeout: Seconds that an attempt to connect, and an answer, may take.

    Acknowledged entries stay in the stream until it is trimmed, by `XADD key MAXLEN ~ 1000000 …` for example.
    Entries that are trimmed away before they were read are lost, and counted in `lost`.

    Example:
        >>> redis("redis://:secret@example.org/readings", group="agent-7").name
        'redis://example.org/readings'
    """
    return RedisSource(address, group, consumer, acknowledge, window, patience, timeout)


class RedisSource(Source):
    """What `redis` returns.

    The ids of entries grow. A checkpoint keeps the last one, and entries up to it are left out, also if the server
    came back from an old snapshot and sends them again.

    Attributes:
        lost: Entries that were trimmed away before they were read.
    """

    def __init__(
        self,
        address: str,
        group: str,
        consumer: str,
        acknowledge: When,
        window: int,
        patience: float,
        timeout: float,
    ) -> None:
        parts, name = split(address, ("redis", "rediss"), FORM)
        super().__init__(name, acknowledge, window, patience)
        self._key = unquote(parts.path[1:])
        if not self._key:
            raise ConfigError(f"{name!r} names no stream. Write it as {FORM}.")
        for word, value in (("group", group), ("consumer", consumer)):
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{word}={value!r} is not allowed. Give a name, for example 'agent-7'.")
        options = dict(parse_qsl(parts.query))
        if set(options) - {"db"} or not options.get("db", "0").isdigit():
            raise ConfigError(f"{name!r} has an unknown option. Write it as {FORM}.")
        self._url = parts._replace(path="", query=urlencode(options)).geturl()
        self._group, self._consumer, self._timeout = group, consumer, timeout
        # The last entry that was handed out, and the last that was acknowledged as learned.
        self._last = self._learned = "0-0"
        self._count = 1
        self._client: Any = None
        self.lost = 0

    def open(self, token: str | None) -> None:
        """Leave out the entries up to this one."""
        self._last = self._learned = token or self._learned

    def __iter__(self) -> Iterator[Letter]:
        try:
            from redis import Redis
            from redis.exceptions import ConnectionError as NoConnection
            from redis.exceptions import TimeoutError
        except ImportError as error:
            raise ConfigError(f"a feed of redis:// needs redis-py: {install('redis')}") from error
        self._client = Redis.from_url(
            self._url,
            socket_connect_timeout=self._timeout,
            socket_timeout=self._timeout + PAUSE / 1000,
            socket_keepalive=True,
            client_name="hamlearn",
        )
        lost = (NoConnection, TimeoutError)
        connect = self.attempts(lost)
        with contextlib.closing(self._client):
            while not self._stopped.is_set():
                connect(self._make_group)
                try:
                    yield from self._entries()
                except lost:
                    self._stopped.wait(FIRST_WAIT)

    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Tell the server. An entry whose acknowledgement is lost comes again, and is acknowledged then."""
        if tokens:
            self._learned = tokens[-1]
            self.discard(tokens)

    def discard(self, tokens: Sequence[str]) -> None:
        """Tell the server."""
        from redis.exceptions import ConnectionError as NoConnection
        from redis.exceptions import TimeoutError

        with contextlib.suppress(NoConnection, TimeoutError):
            self._client.xack(self._key, self._group, *tokens)

    def _make_group(self) -> None:
        from redis.exceptions import AuthenticationError, ResponseError

        try:
            self._client.xgroup_create(self._key, self._group, id="0", mkstream=True)
        except (AuthenticationError, ResponseError) as error:
            if "BUSYGROUP" not in str(error):
                raise self._unreadable(error) from error

    def _entries(self) -> Iterator[Letter]:
        """Entries that were delivered and not acknowledged first; then new ones."""
        after = "0-0"
        while not self._stopped.is_set() and (pending := self._read(after)):
            after = pending[-1][0].decode()
            yield from self._letters(pending)
        while not self._stopped.is_set():
            yield from self._letters(self._read(">"))

    def _read(self, after: str) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
        from redis.exceptions import ResponseError

        wait = PAUSE if after == ">" else None
        try:
            answer = self._client.xreadgroup(self._group, self._consumer, {self._key: after}, self._count, wait)
        except ResponseError as error:
            raise self._unreadable(error) from error
        batches = answer.values() if isinstance(answer, dict) else [[batch] for _, batch in answer or ()]
        entries = [entry for batch in batches for part in batch for entry in part]
        largest = max((len(fields.get(FIELD, b"")) for _, fields in entries if fields), default=1)
        self._count = max(1, min(AT_ONCE, 2 * self._count, BYTES // max(1, largest)))
        return entries

    def _unreadable(self, error: Exception) -> StreamError:
        return StreamError(f"{self.name} cannot be read: {error}. Correct the key, the user or the password.")

    def _letters(self, entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> Iterator[Letter]:
        for name, fields in entries:
            token = name.decode()
            if _order(token) <= _order(self._last):
                # It was handed out before, and sent again: after a lost connection, or by an old snapshot.
                if _order(token) <= _order(self._learned):
                    self.discard([token])
                continue
            self._last = token
            if fields is None:
                # It was trimmed away in the meantime: only its id is left of it.
                self.lost += 1
                self.discard([token])
                continue
            yield Letter(fields.get(FIELD, b""), f"entry {token} of {self.name}", token)


def _order(token: str) -> tuple[int, ...]:
    return tuple(map(int, token.split("-")))
