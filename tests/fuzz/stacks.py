"""Random stacks of streams, read in every way: one by one, in blocks, resumed at any place, and by a `Reader`."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hamlearn import streams
from hamlearn.errors import HamlearnError
from hamlearn.sample import Label, Sample
from hamlearn.streams import Stream
from hamlearn.streams.reader import Reader
from tests.fuzz.spoil import run_cases

MOST = 90
"""Samples that a stack gives at most."""

Make = Callable[[], Any]


def samples(seed: int, n: int, timed: bool, bad: bool) -> list[Sample]:
    """Vectors with gaps among the targets, ends of sequences, and some inputs that are not finite."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    made = []
    for k in range(n):
        u = torch.randn(2, generator=g) * 3 + 5
        if bad and draw.random() < 0.1:
            u[draw.randrange(2)] = draw.choice([float("nan"), float("inf")])
        target = torch.randn(1, generator=g) * 10 + 100 if draw.random() < 0.7 else None
        made.append(Sample(u, target, draw.choice([0.5, 1.0, 2.25]) if timed else None, not bad and k % 7 == 6))
    return made


def source(draw: random.Random) -> Make:
    """A stream, an iterable or an iterator; each call makes an equal one."""
    seed, n = draw.randrange(1000), draw.choice([0, 1, 5, 23, 40])
    rows = samples(seed, n, draw.random() < 0.7, draw.random() < 0.3)
    g = torch.Generator().manual_seed(seed)
    u, y = torch.randn(n + 1, 2, generator=g), torch.randn(n + 1, 1, generator=g)
    times = torch.rand(n + 1, generator=g, dtype=torch.float64).add(0.1).cumsum(0)
    gap, skip = draw.choice(["before", "after"]), draw.random() < 0.3
    if skip:
        times[n // 2 :] -= 0.3
    epochs, shuffle = draw.choice([1, 2]), draw.random() < 0.5
    table = [{"a": float(k), "b": k % 3 - 0.5, "y": None if k % 4 == 1 else k / 2} for k in range(n + 1)]
    data = torch.utils.data.TensorDataset(u, y)
    back = "skip" if skip else "raise"
    makes: list[Make] = [
        lambda: streams.from_iterable(list(rows)),
        lambda: streams.from_iterable(lambda: iter(rows)),
        lambda: streams.from_iterable(iter(rows)),
        lambda: list(rows),
        lambda: streams.from_dataset(data, None, shuffle=shuffle, epochs=epochs, seed=seed),
        lambda: streams.from_any((u, y)),
        lambda: streams.timed(times, u, y, unit=1.0, backwards=back, gap=gap),
        lambda: streams.timed(times.tolist(), list(u), list(y), unit="auto", backwards=back, gap=gap),
        lambda: streams.from_rows(table, target="y"),
        lambda: streams.from_rows(iter(table), target="y"),
        lambda: streams.from_sequences(u.split([1, n]) if n else [u], y.split([1, n]) if n else [y]),
        lambda: streams.take(streams.signals.lorenz(seed=seed, washout=5), n),
        lambda: streams.take(streams.signals.delayed_add(seed=seed, tau=0.5), 3 * n),
    ]
    return draw.choice(makes)


def around(make: Make, draw: random.Random) -> Make:
    """A stream around another one."""
    n, k, clip = draw.choice([0, 3, 17, 60]), draw.choice([1, 2, 3]), draw.choice([1.5, 10.0])
    flags = [draw.random() < 0.5 for _ in range(3)]
    other, weights, seed = source(draw), draw.choice([None, [1, 2]]), draw.randrange(9)
    policy = draw.choice(["skip", "raise"])
    makes: list[Make] = [
        lambda: streams.take(make(), n),
        lambda: streams.map(make(), lambda sample: replace(sample, u=sample.u * 2)),
        lambda: streams.hold(make(), k, split=flags[0]),
        lambda: streams.finite(make(), policy),
        lambda: streams.clip_tau(make(), 1.0),
        lambda: streams.standardize(make(), clip, scale_target=flags[0]),
        lambda: streams.standardize(make(), clip, scale_target=True),
        lambda: streams.autoregress(make(), k, relative=flags[1], size=1 if flags[2] else None),
        lambda: streams.interleave(make(), other(), weights=weights, seed=seed),
        lambda: streams.interleave(other(), make()),
        lambda: streams.delayed(make(), k),
    ]
    return draw.choice(makes)


def stack(seed: int) -> Make:
    """A source with one to four streams around it."""
    draw = random.Random(seed)
    make = source(draw)
    for _ in range(draw.choice([1, 2, 2, 3, 4])):
        make = around(make, draw)
    return make


def read(events: Any) -> tuple[list[Any], str | None]:
    """What comes, at most so much, and the error that ends it."""
    found: list[Any] = []
    try:
        for event in events:
            found.append(event)
            if len(found) == MOST:
                break
    except HamlearnError as error:
        return found, str(error)
    return found, None


def in_blocks(stream: Stream, draw: random.Random) -> Any:
    """The samples of a new pass, in blocks of random sizes."""
    iter(stream)
    while True:
        block = stream.block(draw.choice([1, 2, 7, 16]))
        if block is None:
            return
        yield from block if isinstance(block, list) else block.each()


def by_reader(reader: Reader, stream: Any, draw: random.Random, resume: bool, most: int = MOST) -> Any:
    """What a learner takes of a stream, in blocks of which it takes a part."""
    reader.open_blocks(stream, resume)
    while most and (block := reader.peek(draw.choice([1, 5, 16]))) is not None:
        for event in block.each()[: min(most, draw.choice([1, 3, 16]))]:
            reader.counted(lambda _: None, event)
            most -= 1
            yield event


def key(event: Any) -> Any:
    """All that an event is, to the bit."""
    if isinstance(event, Label):
        return event.id, event.target.tolist()
    scale = None if event.scale is None else [event.scale.mean.tolist(), event.scale.spread.tolist()]
    raw = None if scale is None or event.target is None else event.scale.target.tolist()
    target = None if event.target is None else event.target.tolist()
    return event.u.dtype, repr(event.u.tolist()), target, event.tau, event.boundary, event.id, scale, raw


def saved(state: Any) -> Any:
    """A state that has been written down."""
    return json.loads(json.dumps(state, allow_nan=False))


def require(got: tuple[list[Any], str | None], whole: tuple[list[Any], str | None], place: int, how: str) -> None:
    """Raise where something else was read than the rest of the whole."""
    found, expected = [key(event) for event in got[0]], [key(event) for event in whole[0][place:]]
    full = len(expected) + place == MOST
    assert found[: len(expected)] == expected, how
    assert full or (len(found), got[1]) == (len(expected), whole[1]), how


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Draw and read stacks until the time, or the number of cases, is over."""
    logging.getLogger("hamlearn").setLevel(logging.ERROR)
    return run_cases("stacks", lambda draw: check(draw.randrange(10**9)), seconds, seed, cases, only)


def check(seed: int) -> str:
    """Read a stack in every way; answers whether it has any samples."""
    make, draw = stack(seed), random.Random(seed)
    stream = make()
    whole = read(iter(stream))
    count = len(whole[0])
    if stream.replayable:
        require(read(iter(stream)), whole, 0, "a second pass")
    require(read(in_blocks(make(), draw)), whole, 0, "in blocks")
    for place in {0, draw.randint(0, count), draw.randint(0, count), count}:
        first, later = make(), make()
        assert len(read(event for _, event in zip(range(place), first, strict=False))[0]) == place
        later.load_state_dict(saved(first.state_dict()))
        require(read(later), whole, place, f"resumed after {place}")
        one, other = Reader(), Reader()
        assert len(read(by_reader(one, make(), draw, False, place))[0]) == place
        other.load_state_dict(saved(one.state_dict()))
        require(read(by_reader(other, make(), draw, True)), whole, place, f"resumed in mid-block after {place}")
        again, stream = Reader(), make()
        read(by_reader(again, stream, draw, False, place))
        require(read(by_reader(again, stream, draw, True)), whole, place, f"run again after {place}")
    return "some" if count else "none"
