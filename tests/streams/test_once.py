"""Iterators, which give nothing twice: what a learner reads ahead of its steps is not lost."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import SampleError, StreamError

COUNT = 600


def rows():
    one = {}
    for k in range(COUNT):
        # A source may use its memory again.
        one.update(x=k % 7 - 3.0, y=float(k))
        yield one


def samples():
    u, target = torch.empty(1), torch.empty(1)
    for row in rows():
        u.fill_(row["x"])
        target.fill_(row["y"])
        yield hl.Sample(u, target)


KINDS = {
    "samples": samples,
    "from_iterable": lambda: streams.from_iterable(samples()),
    "from_rows": lambda: streams.from_rows(rows(), target="y"),
    "from_any": lambda: streams.from_any(rows(), target="y"),
    "standardize": lambda: streams.standardize(streams.from_rows(rows(), target="y")),
    "take": lambda: streams.take(streams.from_rows(rows(), target="y"), COUNT),
    "map": lambda: streams.map(streams.from_iterable(samples()), lambda sample: sample),
    "interleave": lambda: streams.interleave(streams.from_iterable(samples())),
}


def learner():
    torch.manual_seed(0)
    return hl.Learner(hl.Network.feedforward(nn.Linear(1, 1)), nn.functional.mse_loss, hl.Hyper(beta=1e-6))


def seen_in_one_run(kind):
    return [(report.sample.u.item(), report.sample.target.item()) for report in learner().run(KINDS[kind]())]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_left_goes_on_with_the_next_sample(kind, engine, resume):
    if kind == "take" and not resume:
        pytest.skip("a new pass counts anew")
    own, stream, seen = learner(), KINDS[kind](), []
    for most in (300, 37, 1, 0, COUNT):
        for report in own.run(stream, engine=engine, resume=resume and bool(seen)):
            seen.append((report.sample.u.item(), report.sample.target.item()))
            if len(seen) == COUNT or most == 1:
                break
            most -= 1
    expected = seen_in_one_run(kind)
    assert seen == expected[: len(seen)]
    assert len(seen) > 330


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_sample_that_is_refused_is_passed_over_and_no_other(engine, wrapped):
    def odd():
        for k in range(10):
            yield hl.Sample(torch.ones(3 if k == 4 else 1), torch.tensor([float(k)]))

    own, stream, seen = learner(), odd(), []
    stream = streams.from_iterable(stream) if wrapped else stream
    for _ in range(2):
        try:
            for report in own.run(stream, engine=engine):
                seen.append(int(report.sample.target.item()))
        except SampleError:
            seen.append("refused")
    assert seen == [0, 1, 2, 3, "refused", 5, 6, 7, 8, 9]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_stream_that_has_ended_is_not_asked_again(engine):
    class Growing:
        def __init__(self):
            self.items, self.ended = list(samples_of(20)), 10

        def __iter__(self):
            return self

        def __next__(self):
            if len(self.items) == self.ended or not self.items:
                self.ended = -1
                raise StopIteration
            return self.items.pop(0)

    def samples_of(count):
        return [hl.Sample(torch.ones(1), torch.tensor([float(k)])) for k in range(count)]

    own, stream = learner(), Growing()
    assert [len(list(own.run(stream, engine=engine))) for _ in range(2)] == [10, 10]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_run_that_another_overtakes_raises_and_what_it_read_ahead_comes_first(engine):
    own, stream = learner(), samples()
    one, other = own.run(stream, engine=engine), own.run(stream, engine=engine)
    assert [next(run).sample.target.item() for run in (one, one, other, other)] == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(StreamError, match="overtaken by a newer one of the same learner"):
        next(one)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_iterator_is_passed_over_up_to_the_place_of_a_checkpoint(kind, engine, tmp_path):
    own, seen = learner(), []
    for count, report in enumerate(own.run(KINDS[kind](), engine=engine), start=1):
        seen.append((report.sample.u.item(), report.sample.target.item()))
        if count == 300:
            own.save(tmp_path / "saved")
            break
    later = learner()
    later.load(tmp_path / "saved")
    for report in later.run(KINDS[kind](), engine=engine, resume=True):
        seen.append((report.sample.u.item(), report.sample.target.item()))
    assert later.position == COUNT
    assert seen == seen_in_one_run(kind)
