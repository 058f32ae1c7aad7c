"""Spoiled messages through real brokers: taken as a plain parser takes them, or counted as bad."""

from __future__ import annotations

import atexit
import itertools
import math
import random
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks._brokers import Broker, Publisher, mosquitto, program, redis_server
from benchmarks.kills import subscribe
from hamlearn import streams
from tests.fuzz.spoil import require, run_cases
from tests.fuzz.wire_messages import line, plain

MESSAGES = 50
"""In one case."""
LAST = b'{"u": [7.5], "tau": 1}'
"""Good whatever came before it: it says no time that could run backwards."""
_NUMBERS = itertools.count()


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil and send until the time, or the number of cases, is over; without a broker there are none."""
    if program("mosquitto") is None or program("redis-server") is None:
        return {"cases": 0}
    return run_cases("broker_messages", case, seconds, seed, cases, only)


def case(draw: random.Random) -> str:
    """Some messages, and a good one at the end."""
    kind = draw.choice(["t", "tau", None])
    made = (line(draw, k, kind).replace(b"\n", b" ").strip() for k in range(MESSAGES))
    sent = [*(data for data in made if data), LAST]
    broker = draw.choice(["mqtt", "redis"])
    given, wanted = read(broker, sent), plain(b"\n".join(sent), "skip")
    require(given == wanted, lambda: f"{sent!r} over {broker}\nread as {given}\nnot as  {wanted}")
    return broker


def read(kind: str, sent: list[bytes]) -> tuple[list[Any], int]:
    """What hamlearn makes of the messages, up to the last."""
    port, topic = _servers()[kind].port, f"fuzz-{next(_NUMBERS)}"
    address = f"{kind}://127.0.0.1:{port}/{topic}"
    if kind == "mqtt":
        subscribe(port, topic)
        source = streams.mqtt(address, client=topic, window=len(sent))
    else:
        source = streams.redis(address, group="fuzz")
    sender = Publisher(kind, port, topic)
    sender.send(sent)
    sender.close()
    taken: list[Any] = []
    # A clock that stands still: what says no time comes a billionth of a second after the last.
    with streams.live(source, policy="block", bad="skip", clock=lambda: 0.0) as feed:
        for sample in feed:
            target = None if sample.target is None else (str(sample.target.dtype), sample.target.tolist())
            taken.append((sample.u.tolist(), target, sample.tau, sample.boundary))
            if sample.u.tolist() == [7.5]:
                break
    require(feed.taken == len(taken) and feed.dropped == 0, lambda: "samples that were taken are not counted")
    return taken, feed.bad


@cache
def _servers() -> dict[str, Broker]:
    """Both brokers, until the process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "mqtt").mkdir()
    return {
        "mqtt": stack.enter_context(mosquitto(folder / "mqtt", "max_inflight_messages 0", "persistence false")),
        "redis": stack.enter_context(redis_server(folder)),
    }
