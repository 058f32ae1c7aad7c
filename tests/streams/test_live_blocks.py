"""What has arrived is one block: nothing is waited for, nothing is lost, nothing is learned twice."""

import json
import socket
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from hamlearn import streams
from tests.streams.reading import blocks_of

PATIENCE = 20.0


def items(count: int) -> list[hl.Sample]:
    g = torch.Generator().manual_seed(0)
    u = torch.randn(count, 3, generator=g, dtype=torch.float64)
    return [hl.Sample(u[k], u[k].sum(0, keepdim=True), 0.5 + k % 3) for k in range(count)]


def learner(loss=mse_loss) -> hl.Learner:
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(3, 1).double())
    return hl.Learner(network, loss, hl.Hyper.from_sgd(lr=0.05, momentum=0.5))


class Source:
    """Gives items when told, and says when it has given all that it was told to."""

    def __init__(self, given):
        self._given, self._told, self._may = iter(given), threading.Semaphore(0), threading.Semaphore(0)
        self._asked = False

    def __iter__(self):
        return self

    def __next__(self):
        if self._asked:
            self._told.release()
        self._asked = True
        assert self._may.acquire(timeout=PATIENCE)
        return next(self._given)

    def give(self, count):
        """Let `count` items come, and wait until they are there."""
        for _ in range(count):
            self._may.release()
            assert self._told.acquire(timeout=PATIENCE)

    def end(self):
        """Let it find out that there are no more."""
        self._may.release()


def opened(given, **settings):
    source = Source(given)
    return source, streams.live(source, **settings)


def first_of(source, reports):
    """The first report of a run, whose reading starts the source."""
    got = []
    thread = threading.Thread(target=lambda: got.append(next(reports)))
    thread.start()
    source.give(1)
    thread.join(PATIENCE)
    return got[0]


def test_what_has_arrived_is_one_block_and_a_block_is_never_waited_for():
    source, feed = opened(items(19), policy="block")
    with feed:
        blocks = blocks_of(feed, 8)
        assert first_of(source, blocks).count == 1, "a sample that comes alone is taken at once"
        for come, sizes in ((3, [3]), (8, [8]), (7, [7])):
            source.give(come)
            assert [next(blocks).count for _ in sizes] == sizes
        source.end()
        assert next(blocks, None) is None
    source, feed = opened(items(20), policy="block")
    with feed:
        blocks = blocks_of(feed, 8)
        first_of(source, blocks)
        source.give(19)
        assert [next(blocks).count for _ in range(3)] == [8, 8, 3], "a block is never longer than asked for"
        source.end()


def test_the_newest_n_are_one_block_with_the_time_since_the_last_that_was_processed():
    source, feed = opened(items(11), policy="latest-4")
    with feed:
        blocks = blocks_of(feed, 8)
        first_of(source, blocks)
        source.give(10)
        block = next(blocks)
        source.end()
    given = items(11)
    assert torch.equal(block.u[0], torch.stack([sample.u for sample in given[7:11]]))
    assert block.tau == [sum(sample.tau for sample in given[1:8]), *(sample.tau for sample in given[8:11])]
    assert feed.dropped == 6


def theta(one):
    return torch.cat([weight.detach().flatten() for weight in one.network.parameters()])


@pytest.mark.parametrize("stop", [1, 5, 17, 40])
def test_a_run_that_stops_within_a_block_leaves_the_rest_in_the_feed(stop):
    given = items(40)
    whole = learner()
    list(whole.run(given, engine="compiled"))
    one, (source, feed) = learner(), opened(given, policy="block")
    with feed:
        reports = one.run(feed, engine="compiled", chunk=16)
        first_of(source, reports)
        source.give(39)
        source.end()
        for _ in range(stop - 1):
            next(reports)
        reports.close()
        assert one.position == stop
        for report in one.run(feed, engine="compiled", chunk=16, resume=True):
            if one.position == 25:
                break
            assert torch.equal(report.sample.u, given[one.position - 1].u)
        # Another engine goes on where the last step stands.
        list(one.run(feed, max_steps=max(0, 30 - one.position), resume=True))
        list(one.run(feed, engine="compiled", resume=True))
        assert (feed.taken, one.position) == (40, 40)
    torch.testing.assert_close(theta(one), theta(whole), rtol=1e-12, atol=0)


def around(feed, count):
    return streams.standardize(streams.take(streams.clip_tau(feed, 1.0), count))


def test_a_checkpoint_within_a_block_has_the_place_of_the_last_step(tmp_path):
    given = items(40)

    one, (source, feed) = learner(), opened(given, policy="block")
    with feed:
        reports = one.run(around(feed, 35), engine="compiled")
        first_of(source, reports)
        source.give(39)
        source.end()
        for _ in range(12):
            next(reports)
        one.save(tmp_path / "compiled")
        state = one._reader.state_dict()
        assert len(list(reports)) == 35 - 13, "and the run goes on"
    assert (state["position"], state["skip"]) == (13, 0)
    cursor = state["stream"]
    while "inner" in cursor["cursor"]:
        (cursor,) = cursor["cursor"]["inner"]
    assert cursor["cursor"]["taken"] == 13
    later = learner()
    later.load(tmp_path / "compiled")
    with streams.live([hl.Sample(torch.ones(3).double(), tau=1.0)], policy="block") as fresh:
        rest = list(later.run(around(fresh, 35), engine="compiled", resume=True))
        assert len(rest) == 1, "nothing new is passed over"
        assert fresh.taken == 14


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_sample_that_is_refused_is_passed_over_and_those_behind_it_stay(engine):
    given = items(20)
    given[7] = hl.Sample(torch.full((3,), float("nan")).double(), torch.zeros(1).double(), 1.0)
    one, (source, feed) = learner(), opened(given, policy="block")
    with feed:
        reports = one.run(feed, engine=engine)
        first_of(source, reports)
        source.give(19)
        source.end()
        with pytest.raises(hl.errors.HamlearnError):
            list(reports)
        assert one.position == 7
        rest = [report.sample.u for report in one.run(feed, engine=engine)]
    assert len(rest) == 12
    for u, sample in zip(rest, given[8:], strict=True):
        assert torch.equal(u, sample.u)


def test_lines_over_a_socket_are_learned_as_those_of_a_list():
    given = items(600)
    ours, theirs = socket.socketpair()
    lines = [{"u": s.u.tolist(), "target": s.target.tolist(), "tau": s.tau} for s in given]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    sender = threading.Thread(target=lambda: (theirs.sendall(text), theirs.close()))
    sender.start()
    one, other = learner(), learner()
    settings = {"dtype": torch.float64, "target_dtype": torch.float64}
    with streams.live(ours, policy="block", **settings) as feed:
        assert len(list(one.run(feed, engine="compiled"))) == 600
    sender.join()
    list(other.run(given, engine="compiled"))
    torch.testing.assert_close(theta(one), theta(other), rtol=1e-12, atol=0)


class Breaks:
    """A loss that is interrupted at some of its calls."""

    def __init__(self, *calls):
        self.calls, self.count = calls, 0

    def __call__(self, y, target):
        self.count += 1
        if self.count in self.calls:
            raise KeyboardInterrupt
        return mse_loss(y, target)


@pytest.mark.parametrize("wrap", [lambda feed, count: feed, around], ids=["feed", "around"])
@pytest.mark.parametrize("form", ["samples", "messages"])
def test_a_sample_whose_step_is_interrupted_is_handed_out_again(wrap, form):
    given = items(10)
    if form == "messages":
        given = [{"u": s.u.tolist(), "target": s.target.tolist(), "tau": s.tau} for s in given]
    settings = {"dtype": torch.float64, "target_dtype": torch.float64}
    whole, one = learner(), learner(Breaks(1, 5, 6, 12))
    with streams.live(list(given), policy="block", **settings) as feed:
        list(whole.run(wrap(feed, 10)))
    interrupts = 0
    with streams.live(list(given), policy="block", **settings) as feed:
        stream = wrap(feed, 10)
        while one.position < 10:
            try:
                list(one.run(stream, resume=True))
            except KeyboardInterrupt:
                interrupts += 1
    assert (interrupts, feed.taken) == (4, 10)
    assert torch.equal(theta(one), theta(whole))
