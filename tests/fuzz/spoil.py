"""What the fuzzers of files share: ways to spoil bytes, a limit on time, and the loop over cases."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LIMIT, PATIENCE = 20.0, 300.0
"""Seconds of computing, and on the clock, after which a case counts as one that hangs."""


class ViolationError(AssertionError):
    """A foreign error, a hang, or content that is wrong without a word; says how to see it again."""


class HangError(BaseException):
    """The time of a case is over. No `Exception`, so that nothing under test takes it for its own."""


def run_cases(
    name: str,
    case: Callable[[random.Random], str],
    seconds: float = math.inf,
    seed: int = 0,
    cases: int | None = None,
    only: int | None = None,
) -> dict[str, int]:
    """Go through cases until the time, or their number, is over; answers how many ended how.

    Args:
        name: The module, for the reproducer.
        case: One case, drawn from the generator it is given; answers how it ended.
        seconds: Time to spend.
        seed: Of the first case; each has a generator of its own.
        cases: At most so many.
        only: Repeat the case of this number, alone.
    """
    counts: Counter[str] = Counter(cases=0)
    end = time.monotonic() + seconds
    number = only or 0
    while time.monotonic() < end and (cases is None or number < cases) and (only is None or number == only):
        draw = random.Random(f"{name} {seed} {number}")
        try:
            with time_limit():
                counts[case(draw)] += 1
        except (Exception, HangError) as error:
            raise ViolationError(
                f"{type(error).__name__}: {str(error)[:4000]}\n"
                f"see it again: tests.fuzz.{name}.run(seed={seed}, only={number})"
            ) from error
        counts["cases"] += 1
        number += 1
    return dict(counts)


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raises `HangError` in whatever computes or waits too long."""

    def over(number: int, frame: Any) -> None:
        raise HangError(f"it computed for more than {LIMIT:g} s, or waited for more than {PATIENCE:g} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, LIMIT), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE)}
    before = {number: signal.signal(number, over) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def by_bytes(draw: random.Random, data: bytes, pieces: Sequence[bytes]) -> bytes:
    """Some bytes flipped, cut, repeated, moved, or replaced by one of the pieces that such files stumble over."""
    spoiled = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        at = draw.randrange(len(spoiled) + 1)
        length = draw.choice([1, 1, 2, 8, 40])
        kind = draw.randrange(7)
        if kind == 0 and at < len(spoiled):
            spoiled[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del spoiled[at : at + length]
        elif kind == 2:
            spoiled[at:at] = spoiled[at : at + length] * draw.choice([1, 2, 50])
        elif kind == 3:
            spoiled[at : at + draw.choice([0, 1, length])] = draw.choice(pieces)
        elif kind == 4:
            del spoiled[at:]
        elif kind == 5 and at < len(spoiled):
            spoiled[at] = draw.randrange(256)
        else:
            other = draw.randrange(len(spoiled) + 1)
            spoiled[at:at] = spoiled[other : other + length]
    return bytes(spoiled)


def require(holds: bool, what: Callable[[], str]) -> None:
    """A violation, told in words, where something does not hold."""
    if not holds:
        raise ViolationError(what())
