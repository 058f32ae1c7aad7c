"""Every stream keeps the same promises."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from hamlearn import streams
from hamlearn.errors import CheckpointError, StreamError
from hamlearn.state import Sample
from hamlearn.streams import Stream, signals

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
    return [
        replace(s, u=s.u if k % 4 != 1 else s.u * math.nan, boundary=False) for k, s in enumerate(pairs())
    ]


def table(folder: Path) -> Path:
    path = folder / "table.csv"
    rows = [f"{k + 0.1 * (k % 3)},{'' if k % 5 == 4 else k * 0.3},{'' if k % 2 else k}" for k in range(20)]
    path.write_text("t,x,y\n" + "\n".join(rows) + "\n")
    return path


KINDS: dict[str, Callable[[Path], Stream]] = {
    "dataset": lambda _: streams.from_dataset(dataset(), batch_size=4, epochs=2),
    "dataset, shuffled, endless": lambda _: streams.from_dataset(
        dataset(), shuffle=True, epochs=None, seed=3
    ),
    "iterable dataset": lambda _: streams.from_dataset(Counted(), batch_size=3, epochs=3),
    "iterable dataset, buffer": lambda _: streams.from_dataset(Counted(), None, shuffle=4, epochs=2),
    "sequences": lambda _: streams.from_sequences(
        sequences(), [[k] * len(s) for k, s in enumerate(sequences())]
    ),
    "sequences, shuffled": lambda _: streams.from_sequences(
        sequences(), range(5), per="sequence", batch=True, shuffle=True, epochs=None
    ),
    "timed": lambda _: streams.timed([0.0, 0.3, 0.35, 1.7], torch.randn(4, 2), [1, None, 2, 3]),
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
    "finite, holding": lambda _: streams.finite(with_gaps(), "hold"),
    "interleave": lambda _: streams.interleave(pairs(), streams.take(signals.henon(), 20)),
    "interleave, drawn": lambda _: streams.interleave(
        signals.henon(), signals.squares(), weights=[1, 3], seed=5
    ),
    "interleave, sequences": lambda _: streams.interleave(
        streams.from_sequences(sequences()), streams.from_sequences(sequences()[::-1]), by="sequence"
    ),
    "sinusoids": lambda _: signals.sinusoids([0.1, 0.037], [1.0, 0.5], ahead=3, tau=0.3),
    "squares": lambda _: signals.squares([0.01, 0.02]),
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


def equal(a, b) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a, b)


def same(first: list[Sample], second: list[Sample]) -> bool:
    return len(first) == len(second) and all(
        equal(a.u, b.u) and equal(a.target, b.target) and a.tau == b.tau and a.boundary == b.boundary
        for a, b in zip(first, second, strict=True)
    )


def look(stream, n: int = LOOK) -> list[Sample]:
    return list(itertools.islice(stream, n))


def test_two_equal_streams_and_two_passes_yield_the_same(make):
    stream = make()
    first = look(stream)
    assert first
    assert same(first, look(stream))
    assert same(first, look(make()))


def test_a_resumed_stream_goes_on_bit_for_bit_from_any_place(make):
    whole = look(make())
    places = range(min(len(whole), 30)) if len(whole) < LOOK else [0, 1, 5, 255, 256, 257, 511, 512, 513]
    stream = make()
    for n in places:
        looked = iter(stream)
        for _ in range(n):
            next(looked)
        state = json.loads(json.dumps(stream.state_dict(), allow_nan=False))
        later = make()
        later.load_state_dict(state)
        assert same(look(later, LOOK - n), whole[n:]), f"resumed at {n}"
        assert same(look(stream), whole), "a new pass starts from the beginning"


def test_the_spec_tells_shapes_types_and_length(make):
    stream = make()
    samples = look(stream)
    spec = stream.spec
    assert spec.u is not None
    for sample in samples:
        for tensor, said in ((sample.u, spec.u), (sample.target, spec.target)):
            if tensor is not None:
                assert tensor.dtype == said.dtype
                assert len(tensor.shape) == len(said.shape)
                assert all(m in (None, n) for n, m in zip(tensor.shape, said.shape, strict=True))
    if isinstance(stream.length, int):
        assert len(stream) == len(samples)
    elif stream.length == math.inf:
        assert len(samples) == LOOK
        with pytest.raises(TypeError, match="endless"):
            len(stream)
    else:
        with pytest.raises(TypeError, match="does not know"):
            len(stream)
    assert str(spec) in repr(stream)


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
    with pytest.raises(CheckpointError, match="cannot be read"):
        stream.load_state_dict({**state, "cursor": {}})
