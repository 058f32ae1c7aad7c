"""Every stream keeps the same promises."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import CheckpointError, StreamError
from hamlearn.sample import Sample
from hamlearn.streams import Stream, signals
from hamlearn.streams.blocks import Block

LOOK = 600
"""Samples looked at: more than two blocks of a signal."""


class Counted(IterableDataset):
    def __iter__(self):
        return iter([(torch.tensor([float(k)]), torch.tensor(k)) for k in range(11)])


def dataset() -> TensorDataset:
    return TensorDataset(torch.arange(26.0).view(13, 2), torch.arange(13))


def sequences() -> list[torch.Tensor]:
    return [torch.full((n, 2), float(n)) for n in (3, 1, 4, 1, 5)]


def pairs() -> list[Sample]:
    return [Sample(torch.tensor([float(k)]), None, 0.1 * (k + 1), k % 3 == 2) for k in range(9)]


def with_gaps() -> list[Sample]:
    return [replace(s, u=s.u if k % 4 != 1 else s.u * math.nan, boundary=False) for k, s in enumerate(pairs())]


def table(folder: Path) -> Path:
    path = folder / "table.csv"
    rows = [f"{k + 0.1 * (k % 3)},{'' if k % 5 == 4 else k * 0.3},{'' if k % 2 else k}" for k in range(20)]
    path.write_text("t,x,y\n" + "\n".join(rows) + "\n")
    return path


KINDS: dict[str, Callable[[Path], Stream]] = {
    "dataset": lambda _: streams.from_dataset(dataset(), batch_size=4, epochs=2),
    "dataset, shuffled, endless": lambda _: streams.from_dataset(dataset(), shuffle=True, epochs=None, seed=3),
    "iterable dataset": lambda _: streams.from_dataset(Counted(), batch_size=3, epochs=3),
    "iterable dataset, items": lambda _: streams.from_dataset(Counted(), None, epochs=2),
    "sequences": lambda _: streams.from_sequences(sequences(), [[k] * len(s) for k, s in enumerate(sequences())]),
    "sequences, shuffled": lambda _: streams.from_sequences(
        sequences(), range(5), per="sequence", batch=True, shuffle=True, epochs=None
    ),
    "timed": lambda _: streams.timed([0.0, 0.3, 0.35, 1.7], torch.randn(4, 2), [1, None, 2, 3]),
    "timed arrays": lambda _: streams.timed(
        torch.rand(40).double().cumsum(0), torch.randn(40, 2), torch.arange(40)
    ),
    "timed, gap after": lambda _: streams.timed([0.0, 0.3, 0.35, 1.7], torch.randn(4, 2), gap="after"),
    "delayed": lambda _: streams.delayed(streams.from_any((torch.randn(13, 2), torch.arange(13))), by=3),
    "delayed, scaled": lambda _: streams.delayed(streams.standardize(signals.henon(), scale_target=True), by=2),
    "timed, skipping": lambda _: streams.timed([0.0, 0.3, 0.2, 1.7], [1.0, 2.0, 3.0, 4.0], backwards="skip"),
    "list": lambda _: streams.from_iterable([([1.0], 0), ([2.0], None), ([3.0], 1)]),
    "function": lambda _: streams.from_iterable(lambda: iter(pairs())),
    "csv": lambda folder: streams.csv(table(folder), ["x"], "y", time="t", missing="hold"),
    "csv, skipping": lambda folder: streams.csv(table(folder), ["x"], "y", missing="skip"),
    "take": lambda _: streams.take(signals.lorenz(), 300),
    "map": lambda _: streams.map(pairs(), lambda sample: replace(sample, u=sample.u * 2)),
    "hold": lambda _: streams.hold(pairs(), 3, split=True),
    "hold of a signal": lambda _: streams.hold(signals.sinusoids(), 2),
    "finite, skipping": lambda _: streams.finite(with_gaps(), "skip"),
    "clip_tau": lambda _: streams.clip_tau(pairs(), 0.35),
    "standardize, targets": lambda _: streams.standardize(streams.take(signals.lorenz(), 400), scale_target=True),
    "standardize": lambda _: streams.standardize(signals.lorenz(), clip=3.0),
    "autoregress": lambda _: streams.autoregress(
        [([0.5], [0.1 * k * k] if k % 4 != 2 else None) for k in range(12)], 3, relative=True
    ),
    "interleave": lambda _: streams.interleave(pairs(), streams.take(signals.henon(), 20)),
    "interleave, drawn": lambda _: streams.interleave(
        signals.henon(), signals.sinusoids([0.1]), weights=[1, 3], seed=5
    ),
    "sinusoids": lambda _: signals.sinusoids([0.1, 0.037], [1.0, 0.5], ahead=3, tau=0.3),
    "henon": lambda _: signals.henon(ahead=2),
    "lorenz": lambda _: signals.lorenz(),
    "mackey-glass": lambda _: signals.mackey_glass(substeps=2),
    "delayed add": lambda _: signals.delayed_add(3, 300),
}


@pytest.fixture(params=KINDS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def make(request, tmp_path):
    torch.manual_seed(0)
    data = torch.get_rng_state()

    def build() -> Stream:
        torch.set_rng_state(data)
        return KINDS[request.param](tmp_path)

    return build


def test_the_stream_keeps_every_promise(make):
    length = len(list(itertools.islice(make(), LOOK)))
    places = range(min(length, 30)) if length < LOOK else [0, 1, 5, 255, 256, 257, 511, 512, 513]
    streams.check(make, LOOK, places)
    assert str(make().spec) in repr(make())


def test_len_is_the_length_or_says_why_there_is_none(make):
    stream = make()
    if isinstance(stream.length, int):
        assert len(stream) == len(list(stream))
        return
    with pytest.raises(TypeError, match="endless" if stream.length == math.inf else "does not know"):
        len(stream)


def broken(change):
    """A stream that keeps all promises but one."""

    class Broken(type(signals.henon())):
        pass

    stream = signals.henon()
    stream.__class__ = Broken
    for name, value in change.items():
        setattr(Broken, name, value)
    return stream


class Passes:
    count = 0


def shifted(self):
    Passes.count += 1
    yield from signals.henon(seed=Passes.count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_samples": shifted}, "second pass differs"),
        ({"_seek": lambda self, cursor: self._rewind()}, "resumed after 1 samples"),
        ({"spec": property(lambda self: streams.Spec(None, None, 10))}, "says that its length is 10, but gave 50"),
        (
            {"spec": property(lambda self: streams.Spec(streams.TensorSpec((2,), torch.float32), None, None))},
            r"u of sample 0 is torch.float32\[1\], but the spec says float32\[2\]",
        ),
        (
            {"block": lambda self, n: Block(2, [torch.zeros(2, 1)], None, [], None)},
            "read in blocks of 1, it gives other",
        ),
        (
            {
                "_samples": lambda self: iter([Sample(torch.zeros(1))]),
                "spec": property(lambda self: streams.Spec(None, None, math.inf)),
            },
            "says that it is endless, but ended after 1",
        ),
    ],
)
def test_a_broken_promise_is_found(change, message):
    with pytest.raises(StreamError, match=message):
        streams.check(lambda: broken(change), 50)


class Bare:
    """A source that knows nothing of this library but its samples."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        # Not a generator: a pass begins at once.
        self.at, start = 0, self.at if self.loaded else 0
        self.loaded = False
        return self.rest(start)

    loaded = False

    def rest(self, start):
        for k in range(start, 30):
            self.at = k + 1
            yield Sample(torch.tensor([float(k)]), torch.tensor([1.0]))

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at, self.loaded = state["at"], True


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_source_of_ones_own_is_resumed_wherever_it_comes_from(engine, tmp_path):
    streams.check(Bare)

    def learner():
        torch.manual_seed(0)
        return hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)

    one, other = learner(), learner()
    for count, _ in enumerate(one.run(Bare(), engine=engine, chunk=8), start=1):
        if count == 13:
            break
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    rest = [report.sample.u.item() for report in other.run(Bare(), engine=engine, resume=True)]
    assert rest == list(range(13, 30))


def test_a_pass_that_was_overtaken_raises(make):
    stream = make()
    old = iter(stream)
    next(old)
    next(iter(stream))
    with pytest.raises(StreamError, match="overtaken"):
        next(old)


def test_a_state_of_another_stream_is_refused(make):
    stream = make()
    state = stream.state_dict()
    with pytest.raises(CheckpointError, match="belongs to a Other"):
        stream.load_state_dict({**state, "kind": "Other"})
    with pytest.raises(CheckpointError, match="saved with colour='red'"):
        stream.load_state_dict({**state, "config": {**state["config"], "colour": "red"}})
    with pytest.raises(CheckpointError, match="not the state of a stream"):
        stream.load_state_dict({"n": 3})
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        stream.load_state_dict({**state, "cursor": {"names": ["x"] * 5000}})
    assert len(str(caught.value)) < 600
