"""Spoiled messages of a live feed: taken as a plain parser takes them, or counted as bad, or an error of ours."""

from __future__ import annotations

import json
import math
import random
import socket
import struct
from typing import Any

import torch

from hamlearn import streams
from hamlearn.errors import HamlearnError
from hamlearn.streams.live.reading import BELIEVED, LEAP, USUAL
from tests.fuzz.spoil import by_bytes, require, run_cases

PIECES = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true",
    b"NaN", b"-Infinity", b"1e39", b"1e400", b"-1", b"0",
    b"9" * 30, b"9" * 400, b"9" * 5000, b"[" * 50, b"[" * 60_000, b'{"u":' * 3000, b"\xff", b"\xef\xbb\xbf", b"\0",
    b'"u"', b'"t": 1,', b'"tau": 2,', b'"boundary": 1,',
    b'"u": [1],', b'\\ud800', b"\xe2\x80\xa8", b"\r", b"1e-400",
    b'"2024-01-01"', b" ", b"\n",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, -2.5, 1e39, 10**30, 10**400, 5e-324, "", "1", "noon",
    "2024-01-01T00:00:00", [],
    [[]], [1], [1, 2], [[1, 2], [3, 4]], [[1], [2, 3]], {}, {"a": 1}, ["a"], [None], [True], "\ud800", 2**63,
]  # fmt: skip


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil and send until the time, or the number of cases, is over."""
    return run_cases("wire_messages", case, seconds, seed, cases, only)


def case(draw: random.Random) -> str:
    """A feed of a few lines."""
    kind = draw.choice(["t", "tau", None])
    lines = [line(draw, k, kind) for k in range(draw.randrange(1, 6))]
    bad = draw.choice(["skip", "raise"])
    data = b"".join(lines)
    if draw.random() < 0.1:
        data = data[: draw.randrange(len(data) + 1)]
    given, wanted = read(data, bad), plain(data, bad)
    require(given == wanted, lambda: f"{data[:2000]!r} with bad={bad!r}\nread as {given}\nnot as  {wanted}")
    return "stopped" if given[1] is None else "skipped" if given[1] else "read"


def line(draw: random.Random, k: int, kind: str | None) -> bytes:
    """One message, most of the time a bad one."""
    message: dict[str, Any] = {"u": [k + 0.5, -k], "target": draw.choice([[0.25], k, None])}
    if kind is not None:
        message[kind] = k + 0.25 if kind == "t" else 0.5
    if draw.random() < 0.4:
        name = draw.choice(["u", "target", "t", "tau", "boundary", "y"])
        message[name] = draw.choice(VALUES)
        if draw.random() < 0.2:
            del message[draw.choice(list(message))]
    data = json.dumps(message).encode() + b"\n"
    return by_bytes(draw, data, PIECES) if draw.random() < 0.4 else data


def read(data: bytes, bad: str) -> tuple[list[Any], int | None]:
    """What hamlearn makes of the bytes: samples, and how many were bad; `None` where an error ended it."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    theirs.settimeout(5.0)
    theirs.sendall(data)
    theirs.close()
    taken: list[Any] = []
    # A clock that stands still: what says no time comes a billionth of a second after the last.
    with streams.live(ours, policy="block", bad=bad, clock=lambda: 0.0) as feed:  # type: ignore[arg-type]
        try:
            for sample in feed:
                target = None if sample.target is None else (str(sample.target.dtype), sample.target.tolist())
                taken.append((sample.u.tolist(), target, sample.tau, sample.boundary))
        except HamlearnError as error:
            message = str(error)
            require("line " in message and len(message) < 3000, lambda: f"where is it: {message}")
            message.encode()
            return taken, None
    require(feed.taken == len(taken) and feed.dropped == 0, lambda: "samples that were taken are not counted")
    return taken, feed.bad


class BadMessageError(Exception):
    """A message that is bad, and the time step that can be read in it."""

    def __init__(self, tau: float = 0.0) -> None:
        super().__init__()
        self.tau = tau


def plain(data: bytes, bad: str) -> tuple[list[Any], int | None]:
    """The same, line by line and without threads."""
    taken: list[Any] = []
    count, owed, stamp, first = 0, 0.0, None, True
    gap: float | None = None
    leaps: list[float] = []
    for raw in data.split(b"\n"):
        if not raw or raw.isspace():
            continue
        try:
            message = _message(raw)
            tau, now = _tau(message), _stamp(message)
            u, target = _numbers(message["u"], tau, False), _numbers(message.get("target"), tau, True)
            # Two stamps in a row that are much too far ahead are left out; the third is right if it agrees.
            far = None not in (now, stamp, gap) and now - stamp > LEAP * gap  # type: ignore[operator]
            if far and not (len(leaps) >= BELIEVED - 1 and 0 < now - leaps[-1] <= LEAP * gap):  # type: ignore[operator]
                leaps.append(now)  # type: ignore[arg-type]
                count, owed = count + 1, owed + (tau or 0.0)
                continue
            step = _step(now, stamp, tau, owed, first)
            if now is not None and stamp is not None:
                gap = now - stamp if gap is None else gap + (now - stamp - gap) / USUAL
        except BadMessageError as error:
            if bad == "raise":
                return taken, None
            count += 1
            owed += error.tau
            continue
        stamp, first, owed, leaps = now, False, 0.0, []
        taken.append((u, target, step, message.get("boundary", False)))
    return taken, count


def _step(now: float | None, stamp: float | None, tau: float | None, owed: float, first: bool) -> float | None:
    if now is not None and stamp is not None:
        step: float | None = now - stamp
    elif tau is not None:
        step = tau + owed
    else:
        step = None if first or now is not None else 1e-9
    if step is not None and not 0 < step < math.inf:
        raise BadMessageError(tau or 0.0)
    return step


def _message(raw: bytes) -> dict[str, Any]:
    def no(name: str) -> Any:
        raise ValueError(name)

    try:
        text = raw.decode("utf-8")
        text = text[1:] if text.startswith("\ufeff") else text
        message = json.loads(text, parse_constant=no)
        # Half of a surrogate pair is not a character.
        json.dumps(message, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise BadMessageError from None
    if not isinstance(message, dict):
        raise BadMessageError
    tau = _tau(message) or 0.0
    known = {"u", "target", "t", "tau", "boundary"}
    if set(message) - known or not isinstance(message.get("boundary", False), bool):
        raise BadMessageError
    if message.get("u") is None:
        raise BadMessageError(tau)
    return message


def _tau(message: dict[str, Any]) -> float | None:
    tau = message.get("tau")
    if tau is None:
        return None
    if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 < tau <= 1.8e308:
        raise BadMessageError
    try:
        return _finite(float(tau))
    except OverflowError:
        raise BadMessageError from None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadMessageError
    return value


def _stamp(message: dict[str, Any]) -> float | None:
    from tests.fuzz.csv_files import BadRowError, _time

    stamp = message.get("t")
    if stamp is None:
        return None
    tau = _tau(message) or 0.0
    try:
        if isinstance(stamp, str):
            return _time(stamp)
        if isinstance(stamp, bool) or not isinstance(stamp, int | float):
            raise BadMessageError(tau)
        return _finite(float(stamp))
    except (BadRowError, OverflowError, BadMessageError):
        raise BadMessageError(tau) from None


def _numbers(value: Any, tau: float | None, keeps: bool) -> Any:
    """Nested lists of one shape, as float32; targets that are whole stay whole."""
    if value is None:
        return None
    leaves: list[Any] = []
    if _shape(value, leaves) is None:
        raise BadMessageError(tau or 0.0)
    if any(isinstance(leaf, int) and not -(2**63) <= leaf < 2**63 for leaf in leaves):
        raise BadMessageError(tau or 0.0)
    if keeps:
        if leaves and all(isinstance(leaf, bool) for leaf in leaves):
            return "torch.bool", value
        if leaves and all(isinstance(leaf, int) for leaf in leaves):
            return "torch.int64", _mapped(value, int)
    try:
        numbers = _mapped(value, lambda leaf: struct.unpack("f", struct.pack("f", leaf))[0])
    except (OverflowError, struct.error):
        raise BadMessageError(tau or 0.0) from None
    flat: list[Any] = []
    _shape(numbers, flat)
    if not all(math.isfinite(leaf) for leaf in flat):
        raise BadMessageError(tau or 0.0)
    return (str(torch.float32), numbers) if keeps else numbers


def _mapped(value: Any, fn: Any) -> Any:
    return [_mapped(item, fn) for item in value] if isinstance(value, list) else fn(value)


def _shape(value: Any, leaves: list[Any]) -> tuple[int, ...] | None:
    if isinstance(value, bool | int | float):
        leaves.append(value)
        return ()
    if not isinstance(value, list):
        return None
    shapes = [_shape(item, leaves) for item in value]
    if any(shape is None or shape != shapes[0] for shape in shapes):
        return None
    return (len(value), *(shapes[0] or ())) if shapes else (0,)
