"""Arrivals that become samples all at once, or one by one: the same samples, to the bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hamlearn.streams.blocks import Block
from hamlearn.streams.live.buffer import Arrival
from hamlearn.streams.live.reading import FeedPlace, Reading

TIMES = st.floats(0.0, 1e6, allow_nan=False)


def arrivals(times, stamps, taus):
    return [
        Arrival("arrays", np.ones(2, np.float32), None, None, f"item {k}", time, stamp, tau)
        for k, (time, stamp, tau) in enumerate(zip(times, stamps, taus, strict=True))
    ]


def events(read):
    return read.made.each() if isinstance(read.made, Block) else read.made


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    times=st.lists(TIMES, min_size=2, max_size=6),
    unit=st.sampled_from([1.0, 1e-3, 0.7, 3600.0]),
    before=st.sampled_from([FeedPlace(), FeedPlace(3, 1, 0.5, 0.25, 0.5), FeedPlace(3, 0, None, 0.25)]),
)
def test_many_at_once_are_as_many_apart_as_one_by_one(data, times, unit, before):
    says = data.draw(st.sampled_from(["nothing", "stamp", "tau", "mixed"]))
    count = len(times)
    stamps, taus = [None] * count, [None] * count
    if says in ("stamp", "mixed"):
        stamps = [1.0 + k * 0.37 for k in range(count)]
    if says in ("tau", "mixed"):
        taus = [0.25 * (k + 1) for k in range(count)]
    if says == "mixed":
        stamps[data.draw(st.integers(0, count - 1))] = None
    reading = Reading(unit, False, (None, None))
    given_ = arrivals(sorted(times), stamps, taus)
    one_by_one, at_once = reading._one_by_one(given_, before), reading._at_once(given_, before)
    assert at_once is not None
    assert at_once.after == one_by_one.after
    assert [event.tau for event in events(at_once)] == [event.tau for event in events(one_by_one)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_clock_that_says_no_time_is_told_with_the_item_that_it_says_it_of(bad):
    reading = Reading(1.0, False, (torch.float32, None))
    read = reading.read(arrivals([1.0, bad, 2.0], [None] * 3, [None] * 3), FeedPlace(arrived=0.5))
    assert "item 1" in str(read.error)
    assert read.after.taken == 1
