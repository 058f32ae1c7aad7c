"""An agent's view of a live feed."""

from __future__ import annotations

import re
import socket
import time
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import torch

from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.state import Label, Sample
from hamlearn.streams.base import Stream
from hamlearn.streams.live.buffer import Arrival, Buffer
from hamlearn.streams.live.feeders import Feeder
from hamlearn.streams.live.sockets import Lines, connect, is_address
from hamlearn.streams.live.wire import require_step, tensor_of
from hamlearn.streams.units import to_unit
from hamlearn.streams.values import Spec, to_sample


def live(
    source: Any,
    policy: str = "drop",
    n: int = 1,
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
            of its own), a function that returns one of these, a connected `socket.socket`, or the address of
            a socket that sends JSON lines: `"tcp://host:port"` or `"unix:///path"`. Items are `Sample`s,
            pairs (t, `Sample`) with a time stamp, pairs (u, target), or inputs. A line is an object like
            `{"u": [0.1], "target": [1.0], "t": 0.5}`; `target`, `t`, `tau` and `boundary` may be left out. A
            sample may have an `id`, and its label come later: `{"id": 7, "target": [1.0]}`, or a `Label`.
        policy: `"drop"`: what arrives while the learner is busy is discarded but for the newest.
            `"block"`: nothing is lost and the source waits. `"latest-n"`: the newest `n` wait for the
            learner, older ones are discarded; `"latest-16"` says `n` at once.
        n: How many items wait at most, with `"latest-n"` and `"block"`.
        unit: What counts as one unit of time: a number of seconds, or a `timedelta`.
        bad: What an item that is no sample gets (a line that is not JSON, is too long or cut short, a number that
            is not finite or too large, a time stamp that does not move forward): `"raise"` an error, or
            `"skip"`: it is left out, also where it would have ended a sequence, and counted in `bad`.
        dtype: Of inputs in JSON; `None` is torch's default.
        target_dtype: Of targets in JSON; `None` keeps whole numbers whole.
        clock: Seconds, for items that do not say their time.
        timeout: Seconds that connecting, and closing a source that hangs, may take.

    `tau` is the true time since the last sample that was processed: the difference of their time stamps `t`;
    else the sum of their own `tau`, those of dropped samples included; else the time between their arrivals.
    The first sample has the `tau` that it came with.

    `dropped` counts what was discarded. A source that fails raises `StreamError` in the learner, with the
    cause, once everything it had given before was read. Reading begins with the first sample asked for;
    `close()`, or leaving a `with` block, stops it. A feed cannot be wound back: a second pass, and a resumed
    one, goes on.

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
    if policy == "drop":
        n = 1
    if n < 1:
        raise ConfigError(f"n={n} lets no item wait for the learner. Give 1 or more.")
    if bad not in ("raise", "skip"):
        raise ConfigError(f'bad={bad!r} is not known. Give "raise" or "skip".')
    if isinstance(source, str) and not is_address(source):
        raise ConfigError(f"{source!r} is no address. Write it as tcp://host:port or unix:///path.")
    return LiveStream(source, n, policy == "block", to_unit(unit), bad, (dtype, target_dtype), clock, timeout)


class LiveStream(Stream):
    """What `live` returns.

    Attributes:
        taken: Samples that the learner got.
    """

    def __init__(
        self,
        source: Any,
        n: int,
        block: bool,
        unit: float,
        bad: str,
        dtypes: tuple[torch.dtype | None, torch.dtype | None],
        clock: Callable[[], float],
        timeout: float,
    ) -> None:
        self._source, self._unit, self._skip_bad = source, unit, bad == "skip"
        self._u_dtype, self._target_dtype = dtypes
        self._clock, self._timeout = clock, timeout
        self._buffer = Buffer(n, block)
        self._close: Callable[[], Any] | None = None
        self._last: Arrival | None = None
        self._last_stamp: float | None = None
        self._seen: Sample | None = None
        self.taken = self._bad = self._before = 0
        self._owed = 0.0

    @property
    def reads_ahead(self) -> bool:
        """Never: a sample is taken when the learner is ready for it, and not before."""
        return False

    @property
    def spec(self) -> Spec:
        """As the first sample looked; a feed does not say when it will end."""
        return Spec(None, None, None) if self._seen is None else Spec.of(self._seen, None)

    @property
    def dropped(self) -> int:
        """Items that were discarded because the learner was busy."""
        return self._before + self._buffer.dropped

    @property
    def bad(self) -> int:
        """Items left out because they were no samples or time did not move forward (`bad="skip"`)."""
        return self._bad + self._buffer.bad

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

    def _rewind(self) -> None:
        return

    def _cursor(self) -> dict[str, Any]:
        return {"taken": self.taken, "dropped": self.dropped, "bad": self.bad, "last": self._last_stamp}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self.taken, self._before, self._bad = (int(cursor[key]) for key in ("taken", "dropped", "bad"))
        self._before -= self._buffer.dropped
        self._bad -= self._buffer.bad
        self._last_stamp = None if cursor["last"] is None else float(cursor["last"])

    def _samples(self) -> Iterator[Any]:
        if self._close is None and not self._buffer.closed:
            self._start()
        while True:
            arrival = self._buffer.get()
            if arrival is None:
                return
            try:
                sample = self._label(arrival) if arrival.label else self._sample(arrival)
            except SampleError:
                if not self._skip_bad:
                    raise
                self._bad += 1
                self._owed += (arrival.tau or 0.0) + arrival.owed
                continue
            self.taken += 1
            if self._seen is None and isinstance(sample, Sample):
                self._seen = sample
            yield sample

    def _start(self) -> None:
        source = self._source
        if callable(source) and not isinstance(source, Iterable | AsyncIterable):
            source = source()
        if is_address(source):
            source = Lines(connect(source, self._timeout), source)
        elif isinstance(source, socket.socket):
            source = Lines(source, "the socket")
        elif not isinstance(source, Iterable | AsyncIterable):
            raise StreamError(
                f"the source is a {type(source).__name__}, which can be neither iterated over nor "
                "connected to. "
                "Give an iterable, an asynchronous generator, a socket or its address."
            )
        feeder = Feeder(source, self._buffer, self._clock, self._skip_bad)
        # The feeder does not know the stream, so that a stream which nobody holds any more closes itself.
        self._close = weakref.finalize(self, feeder.stop, self._timeout)
        feeder.start()

    def _label(self, arrival: Arrival) -> Label:
        item = arrival.item
        if isinstance(item, Label):
            return item
        return Label(item["id"], tensor_of(item["target"], self._target_dtype, "target", arrival.place))

    def _sample(self, arrival: Arrival) -> Sample:
        tau = self._tau(arrival)
        item, place = arrival.item, arrival.place
        if isinstance(item, Mapping):
            u = tensor_of(item["u"], self._u_dtype or torch.get_default_dtype(), "u", place)
            target = tensor_of(item.get("target"), self._target_dtype, "target", place)
            sample = Sample(u, target, boundary=arrival.boundary, id=item.get("id"))
        else:
            try:
                sample = to_sample(item, self._u_dtype)
            except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
                raise SampleError(
                    f"{place} is no sample ({error}). Give Samples, pairs (u, target), or inputs: numbers, arrays "
                    "or lists of numbers of equal lengths."
                ) from error
        self._last, self._last_stamp, self._owed = arrival, arrival.stamp, 0.0
        return replace(sample, tau=tau)

    def _tau(self, arrival: Arrival) -> float | None:
        place = arrival.place
        if arrival.stamp is not None and self._last_stamp is not None:
            passed = arrival.stamp - self._last_stamp
            if passed <= 0:
                how = "stands still" if passed == 0 else "runs backwards"
                raise SampleError(
                    f"time {how} at {place}: its time stamp comes {-passed:g} before that of the last "
                    'sample. Mend the source, or leave such samples out with bad="skip".'
                )
            return require_step(passed / self._unit, passed, place)
        if arrival.tau is not None:
            owed = self._owed + arrival.owed
            return require_step(arrival.tau + owed, owed, place)
        if self._last is None or arrival.stamp is not None:
            return None
        # Two arrivals within one tick of the clock are still one after the other.
        passed = max(arrival.arrived - self._last.arrived, 1e-9)
        return require_step(passed / self._unit, passed, place)
