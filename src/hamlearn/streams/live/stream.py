"""An agent's view of a live feed."""

from __future__ import annotations

import re
import socket
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch

from hamlearn._base.interrupts import defer_sigint
from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.clock import to_unit
from hamlearn.streams.live.buffer import Buffer
from hamlearn.streams.live.feeder import Feeder
from hamlearn.streams.live.messages import Parser
from hamlearn.streams.live.reading import FeedPlace, Read, Reading
from hamlearn.streams.live.sockets import SocketLines, connect, is_address
from hamlearn.streams.live.source import Source
from hamlearn.streams.values import Spec

WAITING = 1024
"""Items that wait at most where the source is to wait, unless another number is given: some blocks of them."""


def live(
    source: str | socket.socket | Source | Iterable[Any] | Callable[[], Any],
    policy: str = "drop",
    n: int | None = None,
    unit: float | timedelta = 1.0,
    bad: Literal["raise", "skip"] = "raise",
    dtype: torch.dtype | None = None,
    target_dtype: torch.dtype | None = None,
    clock: Callable[[], float] = time.monotonic,
    timeout: float = 10.0,
) -> LiveStream:
    r"""A live feed, read by a learner that is busy while it learns.

    Args:
        source: An iterable or generator (read in a thread), a function that returns one, a connected
            `socket.socket`, the address of a socket that sends JSON lines: `"tcp://host:port"` or
            `"unix:///path"`, or a broker's feed: what `streams.mqtt`, `streams.redis` and `streams.websocket`
            return. Items are `Sample`s, pairs (t, `Sample`) with a time stamp, pairs (u, target), or inputs. A
            line is an object like `{"u": [0.1], "target": [1.0], "t": 0.5}`; `target`, `t`, `tau` and `boundary`
            may be left out. A sample may have an `id`, and its label come later: `{"id": 7, "target": [1.0]}`, or
            a `Label`.
        policy: `"drop"`: what arrives while the learner is busy is discarded but for the newest.
            `"block"`: nothing is lost and the source waits. `"latest-n"`: the newest `n` wait for the
            learner, older ones are discarded; `"latest-16"` says `n` at once.
        n: How many items wait at most, with `"latest-n"` (1 where nothing is said) and `"block"` (1,024: the
            source may be that far ahead of the learner).
        unit: What counts as one unit of time: a number of seconds, or a `timedelta`.
        bad: What a bad item gets (a line that is not JSON, is too long or cut short, a number that
            is not finite or too large, a time stamp that does not move forward): `"raise"` an error, or
            `"skip"`: it is left out, also where it would have ended a sequence, and counted in `bad`.
        dtype: Of inputs in JSON, and of fractions in items that are not tensors; `None` is torch's default.
        target_dtype: Of targets in JSON; `None` keeps whole numbers whole.
        clock: Seconds, for items that do not say their time.
        timeout: Seconds that connecting, and closing a source that hangs, may take.

    `tau` is the true time since the last sample that was processed: the difference of their time stamps `t`;
    else the sum of their own `tau`, those of dropped samples included; else the time between their arrivals.
    The first sample has the `tau` that it came with.

    `dropped` counts what was discarded. A source that fails raises `StreamError` in the learner, with the
    cause, once everything it had given before was read. Reading begins with the first sample asked for;
    `close()`, or leaving a `with` block, stops it. A feed cannot be wound back: a second pass, and a resumed
    one, continues. Streams around a feed, such as `standardize`, are resumed from the beginning of the block in
    hand: their statistics then lack the samples of that block.

    A broker's feed sends again what no checkpoint has, so that with `policy="block"` a run that was
    killed and is resumed learns each message once.

    The compiled engine takes what has arrived as one block, and waits only where nothing has.

    Example:
        >>> def sensor():
        ...     for k in range(4):
        ...         yield 0.5 * k, Sample(torch.tensor([float(k)]))
        >>> with live(sensor(), policy="block") as feed:
        ...     [(sample.u.item(), sample.tau) for sample in feed]
        [(0.0, None), (1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]
    """
    latest = re.fullmatch(r"latest-(\d+|n)", policy)
    if latest is None and policy not in ("drop", "block"):
        raise ConfigError(
            f'policy={policy!r} is not known. Give "drop", "block", "latest-n" or, say, "latest-16".'
        )
    if latest is not None and latest[1] != "n":
        n = int(latest[1])
    if policy == "drop" or n is None:
        n = WAITING if policy == "block" else 1
    if n < 1:
        raise ConfigError(f"n={n} lets no item wait for the learner. Give 1 or more.")
    if bad not in ("raise", "skip"):
        raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
    if isinstance(source, str) and not is_address(source):
        raise ConfigError(
            f"source={source!r} must be an address such as tcp://host:port or unix:///path; of brokers, give what "
            "streams.mqtt, streams.redis or streams.websocket return."
        )
    reading, parser = Reading(to_unit(unit), bad == "skip"), Parser(dtype, target_dtype)
    return LiveStream(source, Buffer(n, policy == "block"), reading, parser, clock, timeout)


class LiveStream(Stream):
    """What `live` returns.

    A block is all that has arrived when it is asked for; it is waited for only if nothing has. If a learner
    stops within a block, the rest waits in the learner, and comes first when it runs this feed again.
    """

    def __init__(
        self,
        source: Any,
        buffer: Buffer,
        reading: Reading,
        parser: Parser,
        clock: Callable[[], float],
        timeout: float,
    ) -> None:
        self._source, self._buffer, self._reading, self._parser = source, buffer, reading, parser
        self._clock, self._timeout = clock, timeout
        self._stop: Callable[[], Any] | None = None
        self._seen: Sample | None = None
        self._place = FeedPlace()
        # What was handed out last: the place after each sample of it can be asked for.
        self._last: Read | None = None
        self._broker = source if isinstance(source, Source) else None
        # Tokens of messages that were handed out and not acknowledged, and how many came before them.
        self._passed: list[str] = []
        self._acknowledged = 0

    live = True
    replayable = False

    @property
    def spec(self) -> Spec:
        """As the first sample looked; a feed does not say when it will end."""
        return Spec(None, None, None) if self._seen is None else Spec.of(self._seen, None)

    @property
    def taken(self) -> int:
        """Samples and labels that were handed out."""
        return self._place.taken

    @property
    def dropped(self) -> int:
        """Items that were discarded because the learner was busy."""
        return self._buffer.dropped

    @property
    def repeated(self) -> int:
        """Samples left out because a sample with their id had come before."""
        return self._place.repeated

    @property
    def bad(self) -> int:
        """Items left out because they were not samples or time did not move forward (`bad="skip"`)."""
        return self._place.bad

    def close(self) -> None:
        """Stop reading, and forget what has arrived. Can be called again, and from any thread."""
        self._buffer.close()
        self.finish()

    def finish(self) -> None:
        """Stop reading; what has arrived is still handed out, unless a broker will send it again.

        Can be called again, and from any thread.
        """
        if self._broker is not None:
            self._buffer.close()
        self._buffer.end()
        if self._stop is not None:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def save_within(self) -> int | None:
        """Half of what a broker lets wait for a checkpoint, so that it need not stop."""
        broker = self._broker
        return None if broker is None or broker.when != "saved" else max(1, broker.window // 2)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Acknowledge all that the checkpoint has."""
        if self._broker is not None and self._broker.when == "saved":
            self._acknowledge(self._broker, int(state["cursor"]["seen"]))

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """The place after `taken` samples of the block that was handed out last."""
        place, later = (self._place, set()) if self._last is None else self._last.until(taken)
        return {**self.state_dict(), "cursor": self._cursor_of(place, later)}

    def _rewind(self) -> None:
        return

    def _cursor(self) -> dict[str, Any]:
        return self._cursor_of(self._place, set())

    def _cursor_of(self, place: FeedPlace, later: set[Any]) -> dict[str, Any]:
        ids = [id for id in self._reading.ids if id not in later]
        return {**place.state(), "dropped": self.dropped, "ids": ids}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        place = FeedPlace.of(cursor)
        # What this feed has discarded or left out itself, perhaps since that place was noted, stays so.
        self._buffer.dropped = max(int(cursor["dropped"]), self._buffer.dropped)
        place.bad, place.arrived, place.seen = max(place.bad, self.bad), self._place.arrived, self._place.seen
        self._place, self._last = place, None
        # That of a label is a pair, of which JSON makes a list.
        self._reading.ids = OrderedDict.fromkeys(tuple(id) if isinstance(id, list) else id for id in cursor["ids"])

    def _block(self, n: int) -> Block | list[Any] | None:
        while (read := self._read(n)) is not None:
            if read.made:
                self._error = read.error
                return read.made
            if read.error is not None:
                raise read.error
        return None

    def _read(self, most: int) -> Read | None:
        """The items that have arrived, at most so many, after a wait; `None` at the end."""
        broker = self._broker
        if broker is not None:
            if broker.when == "learned":
                # A learner that asks for more has learned all that was handed out before.
                self._acknowledge(broker, self._place.seen)
            most = min(most, self._room(broker))
        if self._stop is None and not self._buffer.closed:
            self._start()
        self._buffer.wait(most)
        with defer_sigint():
            arrivals = self._buffer.pop(most)
            if not arrivals:
                return None
            self._last = read = self._reading.read(arrivals, self._place)
            self._buffer.push_back(arrivals[len(read.looked) :])
            if broker is not None:
                self._note(broker, read)
        if self._seen is None:
            made = read.made.each() if isinstance(read.made, Block) else read.made
            self._seen = next((one for one in made if isinstance(one, Sample)), None)
        return read

    def _note(self, broker: Source, read: Read) -> None:
        """Keep the tokens of what will be learned; bad and repeated messages are done with."""
        # An item that raises is the last one, and comes again after a restart.
        looked = [
            (one.token, good) for one, good in read.looked[: None if read.error is None else -1] if one.token
        ]
        self._passed += [token for token, good in looked if good]
        left_out = [token for token, good in looked if not good]
        if left_out:
            broker.discard(left_out)

    def _acknowledge(self, broker: Source, seen: int) -> None:
        """Acknowledge the first `seen` messages that were handed out."""
        count = max(0, seen - self._acknowledged)
        done, self._passed = self._passed[:count], self._passed[count:]
        self._acknowledged += len(done)
        if done:
            broker.acknowledge(done)

    def _room(self, broker: Source) -> int:
        """How many messages may still be handed out before a checkpoint; raises if none, instead of waiting."""
        room = broker.window - len(self._passed)
        if room <= 0:
            raise StreamError(
                f"{len(self._passed)} messages of {broker.name} wait for a checkpoint, and no more come before "
                f"they are acknowledged. Save the learner at least every {self.save_within} samples, raise "
                '`window` (and what the broker allows), or give acknowledge="learned" for a learner that is never '
                "saved."
            )
        return room

    def _start(self) -> None:
        source = self._source
        if callable(source) and not isinstance(source, Iterable):
            source = source()
        if is_address(source):
            source = SocketLines(connect(source, self._timeout), source)
        elif isinstance(source, socket.socket):
            source = SocketLines(source, "the socket")
        elif not isinstance(source, Iterable):
            raise StreamError(
                f"the source is a {type(source).__name__}, which can be neither iterated over nor connected to. "
                "Give an iterable, a socket or its address; for an asynchronous source, an iterator over a queue "
                "that it fills."
            )
        if self._broker is not None:
            self._broker.open(self._place.token)
        feeder = Feeder(source, self._buffer, self._parser, self._clock)
        # The feeder does not know the stream, so that a stream that is not referenced any more is closed.
        self._stop = weakref.finalize(self, feeder.stop, self._timeout)
