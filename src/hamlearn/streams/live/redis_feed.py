"""Entries of a Redis stream, each learned once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.backoff import Backoff
from hamlearn.streams.live.source import Letter, Source, When, split

FORM = "redis://user:password@host:6379/key, or rediss:// for TLS, with ?db=1 for another database"
FIELD = b"data"
"""The field of an entry that holds the message."""
AT_ONCE = 256
"""Entries that are asked for at one time."""
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
        acknowledge: When the group may forget an entry: `"saved"`, once it is in a checkpoint, so that each is
            learned once whatever happens; or `"learned"`, for learners that are never saved.
        window: Entries that may wait for that. No more are asked for, so that a learner has to be saved at least
            every `window` entries; `hamlearn run` sees to it.
        patience: Seconds without a connection after which the feed fails.
        timeout: Seconds that an attempt to connect, and an answer, may take.

    What was acknowledged stays in the stream until it is trimmed, by `XADD key MAXLEN ~ 1000000 …` for example.
    Entries that are trimmed away before they were read are lost, and counted in `lost`.

    Example:
        >>> redis("redis://:secret@example.org/readings", group="agent-7").name
        'redis://example.org/readings'
    """
    return RedisSource(address, group, consumer, acknowledge, window, patience, timeout)


class RedisSource(Source):
    """What `redis` returns. An entry is known by its id, which the server gives once."""

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
        super().__init__(name, acknowledge, window)
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
        self._backoff = Backoff(name, patience)
        self._change = threading.Condition()
        self._open: set[str] = set()
        self._known: set[str] = set()
        self._told: list[str] = []
        self._stopped = False
        self._client: Any = None
        self._last = "0-0"
        self.lost = 0

    def open(self, known: Sequence[str]) -> None:
        """Leave these out, should they come again."""
        self._known = set(known)

    def __iter__(self) -> Iterator[Letter]:
        try:
            import redis as library
        except ImportError as error:
            raise ConfigError(f"a feed of redis:// needs redis-py: {install('redis')}") from error
        self._client = library.Redis.from_url(
            self._url,
            socket_connect_timeout=self._timeout,
            socket_timeout=self._timeout + PAUSE / 1000,
            client_name="hamlearn",
        )
        try:
            while not self._stopped:
                try:
                    yield from self._entries()
                except (library.exceptions.ConnectionError, library.exceptions.TimeoutError) as error:
                    if isinstance(error, library.exceptions.AuthenticationError):
                        raise self._refused(error) from error
                    wait = self._backoff.failed(error)
                    with self._change:
                        self._change.wait_for(lambda: self._stopped, wait)
                except library.exceptions.ResponseError as error:
                    raise self._refused(error) from error
        finally:
            self._client.close()

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Tell the server; what it does not hear now, it is told with the next ones."""
        with self._change:
            told = [token for token in tokens if token in self._open]
            self._told += told
            self._open.difference_update(told)
            self._change.notify_all()
        self._tell()

    def unconfirmed(self) -> list[str]:
        """Those of the checkpoint that may still come again, and those that the server has not been told of."""
        with self._change:
            return [*self._known, *self._told]

    def holds(self, token: str) -> bool:
        """Whether it has been received and not been acknowledged."""
        return token in self._open

    def stop(self) -> None:
        """Let the reader end at its next look."""
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def _entries(self) -> Iterator[Letter]:
        """What was delivered and not acknowledged first, from the last that came in on; then what is new."""
        from redis.exceptions import ResponseError

        try:
            self._client.xgroup_create(self._key, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._backoff.connected()
        self._tell()
        while not self._stopped and (pending := self._read(self._last)):
            yield from self._letters(pending)
        with self._change:
            self._known.clear()
        while not self._stopped:
            yield from self._letters(self._read(">"))

    def _read(self, after: str) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
        with self._change:
            self._change.wait_for(lambda: self._stopped or len(self._open) < self.window)
            count = min(AT_ONCE, self.window - len(self._open))
        if self._stopped:
            return []
        answer = self._client.xreadgroup(
            self._group, self._consumer, {self._key: after}, count=count, block=PAUSE if after == ">" else None
        )
        if isinstance(answer, dict):
            return [entry for batches in answer.values() for batch in batches for entry in batch]
        return [entry for _, batch in answer or () for entry in batch]

    def _letters(self, entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> Iterator[Letter]:
        for name, fields in entries:
            token = name.decode()
            self._last = token
            if token in self._known or not fields:
                # It was learned before, or trimmed away in the meantime: nothing is left of it but its id.
                self.lost += not fields
                self._client.xack(self._key, self._group, token)
                continue
            with self._change:
                self._open.add(token)
            yield Letter(fields.get(FIELD, b""), f"entry {token} of {self.name}", token)

    def _tell(self) -> None:
        from redis.exceptions import ConnectionError as NoConnection
        from redis.exceptions import TimeoutError as NoAnswer

        with self._change:
            told = list(self._told)
        if not told:
            return
        try:
            self._client.xack(self._key, self._group, *told)
        except (NoConnection, NoAnswer):
            # They stay in the list, and in every checkpoint, until the server has answered.
            return
        with self._change:
            heard = set(told)
            self._told = [token for token in self._told if token not in heard]

    def _refused(self, error: Exception) -> StreamError:
        return StreamError(f"{self.name} refuses to be read: {error}. Mend the key, the user or the password.")
