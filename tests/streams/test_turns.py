"""A fast source and a learner take turns: neither is held up for long, and nothing is lost."""

import threading

import pytest

from hamlearn.streams.live import buffer
from hamlearn.streams.live.buffer import Arrival, Buffer

PATIENCE = 20.0


def arrival(number: int) -> Arrival:
    return Arrival("item", number, None, None, f"item {number}", float(number))


def putting(queue: Buffer, numbers: range) -> threading.Thread:
    """A source that has more to give, in a thread of its own."""
    source = threading.Thread(target=lambda: [queue.put(arrival(k)) for k in numbers], daemon=True)
    source.start()
    return source


def filled(count: int, n: int) -> Buffer:
    queue = Buffer(n, True)
    assert all(queue.put(arrival(k)) for k in range(count))
    return queue


def test_a_source_lets_the_learner_work_on_a_whole_block_and_goes_on_when_it_comes_for_more(monkeypatch) -> None:
    queue = filled(4, 8)
    queue.take(4)
    monkeypatch.setattr(buffer, "LINGER", PATIENCE)
    source = putting(queue, range(4, 6))
    source.join(0.2)
    assert source.is_alive()
    assert not queue.waiting
    queue.take(1)
    source.join(PATIENCE)
    assert not source.is_alive()
    assert [item.u for item in queue.handed] == [4]


def test_a_source_may_be_as_far_ahead_as_was_said_though_the_learner_does_not_come_back() -> None:
    queue = filled(4, 8)
    queue.take(4)
    source = putting(queue, range(4, 12))
    source.join(PATIENCE)
    assert not source.is_alive()
    assert queue.full


def test_a_source_that_gives_less_than_a_block_is_not_held_up(monkeypatch) -> None:
    queue = filled(3, 8)
    monkeypatch.setattr(buffer, "LINGER", 0.0)
    queue.take(4)
    monkeypatch.setattr(buffer, "LINGER", PATIENCE)
    source = putting(queue, range(3, 6))
    source.join(PATIENCE / 2)
    assert not source.is_alive()


def test_a_learner_that_waits_for_a_block_wakes_with_its_last_item(monkeypatch) -> None:
    queue = filled(1, 8)
    monkeypatch.setattr(buffer, "NAP", PATIENCE)
    monkeypatch.setattr(buffer, "LINGER", PATIENCE)
    learner = threading.Thread(target=queue.take, args=(4,), daemon=True)
    learner.start()
    source = putting(queue, range(1, 4))
    learner.join(PATIENCE / 2)
    source.join(PATIENCE / 2)
    assert not learner.is_alive()
    assert [item.u for item in queue.handed] == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["full", "turns"])
def test_closing_lets_a_source_go_that_waits(policy: str, monkeypatch) -> None:
    monkeypatch.setattr(buffer, "LINGER", PATIENCE)
    queue = filled(4, 4)
    if policy == "turns":
        queue.take(4)
    source = putting(queue, range(4, 5))
    source.join(0.1)
    assert source.is_alive()
    queue.close()
    source.join(PATIENCE / 2)
    assert not source.is_alive()


def test_an_event_loop_is_not_held_up(monkeypatch) -> None:
    monkeypatch.setattr(buffer, "LINGER", PATIENCE)
    queue = filled(4, 8)
    queue.take(4)
    loop = threading.Thread(target=queue.put, args=(arrival(4),), kwargs={"turns": False}, daemon=True)
    loop.start()
    loop.join(PATIENCE / 2)
    assert not loop.is_alive()
    assert queue.waiting
