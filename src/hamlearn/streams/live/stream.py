"""An agent's view of a live feed."""

from __future__ import annotations

import re
import socket
import time
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch

from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.live.buffer import Buffer
from hamlearn.streams.live.feeders import Feeder
from hamlearn.streams.live.reading import FeedPlace, Read, Reading
from hamlearn.streams.live.recent import Recent
from hamlearn.streams.live.sockets import SocketLines, connect, is_address
from hamlearn.streams.live.source import Source, Unacknowledged
from hamlearn.streams.units import to_unit
from hamlearn.streams.values import Spec

WAITING = 1024
"""Items that wait at most where the source is to wait, unless another number is given: some blocks of them."""


def live(
    source: str | socket.socket | Source | Iterable[Any] | AsyncIterable[Any] | Callable[[], Any],
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
        source: An iterable or generator (read in a thread), an asynchronous generator (run in an event loop
            of its own), a function that returns one of these, a connected `socket.socket`, the address of
            a socket that sends JSON lines: `"tcp://host:port"` or `"unix:///path"`, or a broker's feed: what
            `streams.mqtt`, `streams.redis` and `streams.websocket` return. Items are `Sample`s,
            pairs (t, `Sample`) with a time stamp, pairs (u, target), or inputs. A line is an object like
            `{"u": [0.1], "target": [1.0], "t": 0.5}`; `target`, `t`, `tau` and `boundary` may be left out. A
            sample may have an `id`, and its label come later: `{"id": 7, "target": [1.0]}`, or a `Label`.
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
    one, goes on. Streams around a feed, such as `standardize`, are resumed from the beginning of the block in
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
    latest = re.fullmatch(r"latest-(\d+)", policy)
    if latest:
        n = int(latest[1])
    elif policy not in ("drop", "block", "latest-n"):
        raise ConfigError(
            f'policy={policy!r} is not known. Give "drop", "block", "latest-n" or, say, "latest-16".'
        )
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
    skip_bad = bad == "skip"
    reading = Reading(to_unit(unit), skip_bad, (dtype, target_dtype))
    return LiveStream(source, Buffer(n, policy == "block"), reading, skip_bad, clock, timeout)


class LiveStream(Stream):
    """What `live` returns.

    What has arrived when it is asked for is one block, and is waited for only where nothing has. If a learner
    stops within a block, the rest waits in the learner, and comes first when it runs this feed again.
    """

    def __init__(
        self,
        source: Any,
        buffer: Buffer,
        reading: Reading,
        skip_bad: bool,
        clock: Callable[[], float],
        timeout: float,
    ) -> None:
        self._source, self._buffer, self._reading = source, buffer, reading
        self._skip_bad, self._clock, self._timeout = skip_bad, clock, timeout
        self._close: Callable[[], Any] | None = None
        self._seen: Sample | None = None
        self._place = FeedPlace()
        # What was handed out last: the place after each sample of it can be asked for.
        self._last: Read | None = None
        self._before = 0
        self._broker = source if isinstance(source, Source) else None
        self._passed = Unacknowledged()
        self._known: Any = None

    @property
    def live(self) -> bool:
        """Always: what has not arrived has to be waited for."""
        return True

    @property
    def replayable(self) -> bool:
        """Never: a feed gives nothing twice."""
        return False

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
        return self._before + self._buffer.dropped

    @property
    def repeated(self) -> int:
        """Samples left out because a sample with their id had come before."""
        return self._place.repeated

    @property
    def bad(self) -> int:
        """Items left out because they were no samples or time did not move forward (`bad="skip"`)."""
        return self._place.bad + self._buffer.bad

    def close(self) -> None:
        """Stop reading. Can be called again, and from any thread."""
        self._buffer.close()
        if self._close is not None:
            self._close()

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
        """Tell the broker of all that the checkpoint has."""
        if self._broker is not None and self._broker.when == "saved":
            seen = int(state["cursor"].get("seen", 0))
            self._broker.acknowledge(self._passed.until(seen))
            self._passed.forget(seen)

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """The place after `taken` samples of the block that was handed out last."""
        place = self._last.until(self._last.before.taken + taken) if self._last is not None else self._place
        return {**self.state_dict(), "cursor": self._cursor_of(place)}

    def _rewind(self) -> None:
        return

    def _cursor(self) -> dict[str, Any]:
        return self._cursor_of(self._place)

    def _cursor_of(self, place: FeedPlace) -> dict[str, Any]:
        bad = place.bad + self._buffer.bad
        cursor: dict[str, Any] = {"taken": place.taken, "dropped": self.dropped, "bad": bad, "last": place.stamp}
        cursor |= {"gap": place.gap, "repeated": place.repeated, "ids": self._reading.recent.until(place.named)}
        if self._broker is not None:
            known = self._known if self._close is None else self._broker.known(self._passed.until(place.seen))
            cursor |= {"owed": place.owed, "known": known, "seen": place.seen}
        return cursor

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        taken, dropped, bad = (int(cursor[key]) for key in ("taken", "dropped", "bad"))
        stamp = None if cursor["last"] is None else float(cursor["last"])
        owed, gap = float(cursor.get("owed", 0.0)), cursor["gap"]
        self._reading.recent = Recent(cursor["ids"])
        # What this feed has discarded or left out itself, perhaps since that place was noted, stays so.
        dropped, bad = max(dropped, self.dropped), max(bad, self.bad)
        self._before = dropped - self._buffer.dropped
        self._place = self._place._replace(taken=taken, bad=bad - self._buffer.bad, stamp=stamp, owed=owed)
        self._place = self._place._replace(
            gap=None if gap is None else float(gap),
            repeated=int(cursor["repeated"]),
            named=self._reading.recent.count,
        )
        self._last, self._known = None, cursor.get("known")

    def block(self, n: int) -> Block | list[Any] | None:
        """What has arrived, at most `n` items; waits only if nothing has. `None` at the end."""
        if self._turn == 0 or self._resumed:
            self._begin()
        while True:
            self._raise_held()
            read = self._read(n)
            if read is None:
                return None
            self._error = read.error
            if read.made:
                return read.made

    def _samples(self) -> Iterator[Any]:
        while True:
            read = self._read(1)
            if read is None:
                return
            if read.error is not None:
                raise read.error
            if read.made:
                yield read.made[0] if isinstance(read.made, list) else read.made.sample(0)

    def _read(self, most: int) -> Read | None:
        """What has arrived, at most so many items, waited for; `None` at the end."""
        # A learner that asks for more has learned all that was handed out before.
        self._acknowledge_learned()
        if self._close is None and not self._buffer.closed:
            self._start()
        if not self._buffer.handed:
            if self._broker is not None and not self._buffer.waiting:
                self._require_window(self._broker)
            self._buffer.take(most)
        handed = self._buffer.handed
        if not handed:
            return None
        read = self._reading.read(handed[:most], self._place)
        if self._seen is None:
            made = read.made.each() if isinstance(read.made, Block) else read.made
            self._seen = next((one for one in made if isinstance(one, Sample)), None)
        if self._broker is not None:
            self._note(read)
        self._place, self._last, self._buffer.handed = read.after, read, handed[len(read.arrivals) :]
        return read

    def _note(self, read: Read) -> None:
        good = read.good or [True] * len(read.arrivals)
        marked = [(one.token, not fine) for one, fine in zip(read.arrivals, good, strict=True) if one.token]
        self._passed.note([token for token, _ in marked], [bad for _, bad in marked])

    def _acknowledge_learned(self) -> None:
        if self._broker is not None and self._broker.when == "learned":
            seen = self._place.seen
            self._broker.acknowledge(self._passed.until(seen))
            self._passed.forget(seen)

    def _require_window(self, broker: Source) -> None:
        """Raise instead of waiting for a broker that itself waits for a checkpoint."""
        if len(self._passed) < broker.window:
            return
        # A learner that learns nothing is not saved: items that are not samples are done with.
        broker.acknowledge(self._passed.bad())
        waiting = sum(map(broker.holds, self._passed))
        if waiting >= broker.window:
            raise StreamError(
                f"{waiting} messages of {broker.name} wait for a checkpoint, and no more come before they are "
                f"acknowledged. Save the learner at least every {self.save_within} samples, raise `window` (and "
                'what the broker allows), or give acknowledge="learned" for a learner that is never saved.'
            )

    def _start(self) -> None:
        source = self._source
        if callable(source) and not isinstance(source, Iterable | AsyncIterable):
            source = source()
        if is_address(source):
            source = SocketLines(connect(source, self._timeout), source)
        elif isinstance(source, socket.socket):
            source = SocketLines(source, "the socket")
        elif not isinstance(source, Iterable | AsyncIterable):
            raise StreamError(
                f"the source is a {type(source).__name__}, which can be neither iterated over nor "
                "connected to. "
                "Give an iterable, an asynchronous generator, a socket or its address."
            )
        if self._broker is not None:
            self._broker.open(self._known)
        feeder = Feeder(source, self._buffer, self._clock, self._skip_bad)
        # The feeder does not know the stream, so that a stream that is not referenced any more is closed.
        self._close = weakref.finalize(self, feeder.stop, self._timeout)
        feeder.start()
