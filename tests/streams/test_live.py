"""Live feeds over real threads, event loops and sockets. Nothing here depends on how fast the machine is."""

import gc
import itertools
import json
import socket
import threading
import time

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import ConfigError, StreamError
from hamlearn.sample import Label, Sample

PATIENCE = 20.0
"""Seconds after which a test that waits for a thread gives up."""


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.0005)


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "hamlearn-live"]


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    yield
    gc.collect()
    until(lambda: not feeders())


class Sender:
    """The other end of a socket: sends lines when told, and counts them."""

    def __init__(self, family, address):
        self.server = socket.socket(family, socket.SOCK_STREAM)
        self.server.bind(address)
        self.server.listen(1)
        self.link = None
        self.sent = 0

    def accept(self):
        self.link, _ = self.server.accept()

    def send(self, **line):
        self.link.sendall(json.dumps(line).encode() + b"\n")
        self.sent += 1

    def close(self):
        for end in (self.link, self.server):
            if end is not None:
                end.close()


@pytest.fixture(params=["tcp", "unix"])
def sender(request, tmp_path):
    if request.param == "tcp":
        end = Sender(socket.AF_INET, ("127.0.0.1", 0))
        end.address = f"tcp://127.0.0.1:{end.server.getsockname()[1]}"
    else:
        end = Sender(socket.AF_UNIX, str(tmp_path / "s"))
        end.address = f"unix://{tmp_path / 's'}"
    yield end
    end.close()


def test_drop_at_three_times_the_learners_speed_keeps_the_newest_and_true_time(sender):
    """The sender sends three lines while the learner is busy with one, 200 times."""
    feed = streams.live(sender.address, policy="drop")
    net = hl.Network.recurrent(torch.nn.RNNCell(1, 4), torch.nn.Linear(4, 1))
    learner = hl.Learner(net, torch.nn.functional.mse_loss, hl.Hyper(tau=0.25, eta=0.1, beta=0.001))
    reports = learner.run(feed)
    with feed:
        # The first line is sent before the reader asks, as connect() does not wait for accept().
        starter = threading.Thread(target=lambda: (sender.accept(), sender.send(u=[0.0], t=0.0)))
        starter.start()
        assert next(reports).sample.tau is None
        starter.join()
        stamp = 0.0
        for turn in range(200):
            for k in range(3):
                last = stamp + (k + 1) * 0.25 + 0.125 * (turn % 2)
                sender.send(u=[last], target=[1.0], t=last)
            until(lambda: feed.taken + feed.dropped + 1 == sender.sent)
            sample = next(reports).sample
            assert sample.u.item() == last, "the newest is kept"
            assert sample.tau == last - stamp, "tau is the time since the last one that was processed"
            stamp = last
        assert (feed.taken, feed.dropped) == (201, 400)
        assert learner.state.t == 0.25 + stamp
        assert len(feed._buffer._items) <= 1


def test_block_loses_nothing_however_slow_the_learner(sender):
    count = 3000
    feed = streams.live(sender.address, policy="block", n=4)

    def send():
        sender.accept()
        for k in range(count):
            sender.send(u=[k, -k], target=k % 3, tau=0.5)
        sender.link.close()

    thread = threading.Thread(target=send)
    thread.start()
    most, got = 0, []
    for sample in feed:
        most = max(most, len(feed._buffer._items))
        got.append(sample)
    thread.join()
    assert [int(s.u[0]) for s in got] == list(range(count))
    assert [int(s.target) for s in got] == [k % 3 for k in range(count)]
    assert got[0].u.dtype == torch.get_default_dtype()
    assert got[0].target.dtype == torch.int64
    assert {s.tau for s in got} == {0.5}
    assert most <= 4
    assert feed.dropped == 0


def gated(items):
    """An iterator that gives all its items as soon as the gate is opened, and then stays open."""
    gate = threading.Event()

    def source():
        yield items[0]
        gate.wait(PATIENCE)
        yield from items[1:]

    return source(), gate


def test_latest_n_keeps_the_newest_n_and_adds_up_the_time_of_the_dropped():
    items = [Sample(torch.tensor([float(k)]), tau=0.25) for k in range(10)]
    source, gate = gated(items)
    feed = streams.live(source, policy="latest-3")
    samples = iter(feed)
    assert next(samples).u.item() == 0.0
    gate.set()
    until(lambda: not feeders())
    assert [(s.u.item(), s.tau) for s in samples] == [(7.0, 1.75), (8.0, 0.25), (9.0, 0.25)]
    assert feed.dropped == 6
    assert streams.live([], policy="latest-n", n=3)._buffer._n == 3


def test_without_stamps_tau_is_the_time_between_arrivals():
    ticks = iter([10.0, 11.0, 14.0, 18.0])
    source, gate = gated([1.0, 2.0, 3.0, 4.0])
    feed = streams.live(source, policy="drop", unit=2.0, clock=lambda: next(ticks))
    samples = iter(feed)
    assert next(samples).tau is None
    gate.set()
    until(lambda: not feeders())
    assert [(float(s.u), s.tau) for s in samples] == [(4.0, 4.0)]


def test_a_source_that_dies_raises_in_the_learner_with_the_cause_after_all_it_gave():
    def dying():
        yield 1.0
        yield 2.0
        raise ValueError("the sensor burnt")

    samples = iter(streams.live(dying, policy="block"))
    assert [float(next(samples).u) for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(StreamError, match="failed after 2 items with ValueError: the sensor burnt") as caught:
        next(samples)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_source_that_hangs_is_left_alone_after_the_timeout():
    gate = threading.Event()

    def source():
        yield 1.0
        gate.wait(PATIENCE)

    with streams.live(source(), timeout=0.01) as feed:
        next(iter(feed))
    assert feeders()
    gate.set()


def test_a_feed_that_is_finished_hands_out_what_has_arrived():
    go = threading.Event()

    def source():
        yield from (1.0, 2.0, 3.0)
        go.wait(PATIENCE)
        yield 4.0

    feed = streams.live(source(), policy="block", timeout=0.01)
    samples = iter(feed)
    assert float(next(samples).u) == 1.0
    until(lambda: len(feed._buffer._items) == 2)
    feed.finish()
    go.set()
    assert [float(sample.u) for sample in samples] == [2.0, 3.0]


def test_a_boundary_is_never_dropped_silently():
    items = [Sample(torch.zeros(1), boundary=k == 1) for k in range(4)]
    source, gate = gated(items)
    feed = streams.live(source)
    samples = iter(feed)
    next(samples)
    gate.set()
    until(lambda: not feeders())
    with pytest.raises(StreamError, match="item 2 of the feed ends a sequence"):
        list(samples)


@pytest.mark.parametrize("kind", ["sample", "stamped", "array", "pair", "message", "label"])
def test_a_source_that_uses_its_memory_again_does_not_change_what_waits(kind):
    def sensor():
        tensor, array, numbers = torch.zeros(1), np.zeros(1), [0.0]
        for k in range(5):
            tensor[0] = array[0] = numbers[0] = float(k)
            yield {
                "sample": Sample(tensor),
                "stamped": (float(k), Sample(tensor)),
                "array": array,
                "pair": (array, tensor),
                "message": {"u": numbers},
                "label": Label(k, tensor),
            }[kind]
        ended.set()

    ended = threading.Event()
    with streams.live(sensor(), policy="block", n=8) as feed:
        events = iter(feed)
        first = next(events)
        assert ended.wait(10.0)
        taken = [first, *events]
    assert [(event.target if kind == "label" else event.u).item() for event in taken] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("how", ["closed", "let go"])
def test_a_source_that_waits_runs_its_clean_up_when_its_feed_is_closed_or_let_go(how):
    ended = threading.Event()

    def source():
        try:
            yield from itertools.repeat(1.0)
        finally:
            ended.set()

    feed = streams.live(source, policy="block")
    samples = iter(feed)
    next(samples)
    if how == "closed":
        feed.close()
        feed.close()
        assert list(samples) == list(feed) == []
    else:
        del feed, samples
        gc.collect()
    assert ended.wait(PATIENCE)


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ([], {"policy": "guess"}, "policy='guess'"),
        ([], {"policy": "latest-0"}, "n=0"),
        ([], {"bad": "mend"}, "bad='mend'"),
        ([], {"unit": -1}, "unit=-1"),
        ("localhost:80", {}, "source='localhost:80' must be an address"),
        ("tcp://localhost", {}, "names no host and port"),
        ("tcp://[::1", {}, "cannot be connected to"),
        ("tcp://localhost:99999999", {}, "cannot be connected to"),
        ("unix:///nowhere/none", {}, "cannot connect to unix:"),
        ("unix://" + "a" * 300, {}, "unix"),
        (3, {}, "the source is a int"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_with_the_reason(source, settings, message):
    with pytest.raises((ConfigError, StreamError), match=message):
        next(iter(streams.live(source, timeout=1.0, **settings)))
