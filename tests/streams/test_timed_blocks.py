"""Stamped rows of arrays are read in blocks, to the bit as they are read one by one."""

import itertools
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from hamlearn import streams
from hamlearn.errors import SampleError
from tests.streams.reading import blocks_of, flat

COUNT = 100


def seconds() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return 1e9 + (0.1 + torch.rand(COUNT, generator=draw, dtype=torch.float64)).cumsum(0)


TIMES = {
    "tensor": seconds,
    "float32": lambda: (0.5 + torch.arange(COUNT) % 3).cumsum(0).float(),
    "array": lambda: seconds().numpy(),
    "whole": lambda: np.arange(0, 2 * COUNT, 2),
    "dates": lambda: (
        np.datetime64("2024-01-01T00:00:00.123456789") + np.arange(COUNT) * np.timedelta64(1_234_567_891, "ns")
    ),
    "days": lambda: np.datetime64("2024-01-01") + np.arange(COUNT) * np.timedelta64(1, "D"),
    "datetimes": lambda: [datetime(2024, 1, 1) + timedelta(seconds=1.1 * k) for k in range(COUNT)],
    "texts": lambda: [f"2024-01-01T00:{k // 60:02d}:{k % 60:02d}" for k in range(COUNT)],
    "range": lambda: range(COUNT),
}
INPUTS = {
    "tensor": lambda: torch.randn(COUNT, 3),
    "array": lambda: np.random.default_rng(0).normal(size=(COUNT, 3)),
    "column": lambda: np.random.default_rng(0).normal(size=COUNT).astype(np.float32),
    "strided": lambda: torch.randn(3, COUNT).T,
    "backwards": lambda: np.arange(3.0 * COUNT).reshape(COUNT, 3)[::-1],
    "big-endian": lambda: np.arange(COUNT, dtype=">f4"),
    "list": lambda: [[float(k)] for k in range(COUNT)],
    "graph": lambda: torch.randn(COUNT, 3, requires_grad=True),
}
TARGETS = {
    "none": lambda: None,
    "classes": lambda: torch.arange(COUNT) % 3,
    "array": lambda: np.arange(COUNT, dtype=np.uint8),
    "some": lambda: [None if k % 4 else torch.tensor([float(k)]) for k in range(COUNT)],
}


def stream(times: str, u: str, target: str, **settings) -> streams.Stream:
    torch.manual_seed(0)
    return streams.timed(TIMES[times](), INPUTS[u](), TARGETS[target](), **settings)


def parts(samples):
    return [(s.u, s.target, s.tau, s.boundary) for s in samples]


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and a == b


def of_blocks(source, size) -> list:
    return [block.sample(k) for block in blocks_of(source, size) for k in range(block.count)]


@pytest.mark.parametrize(
    ("times", "u", "target"),
    [
        *itertools.product(TIMES, ["tensor"], ["classes"]),
        *itertools.product(["tensor"], INPUTS, ["none"]),
        *itertools.product(["array"], ["array"], TARGETS),
    ],
)
@pytest.mark.parametrize("unit", ["auto", 0.25])
def test_blocks_hold_the_samples_that_come_one_by_one(times, u, target, unit) -> None:
    singly = stream(times, u, target, unit=unit)
    one_by_one = parts(singly)
    in_blocks = stream(times, u, target, unit=unit)
    found = parts(of_blocks(in_blocks, 7))
    assert len(found) == len(one_by_one) == COUNT
    assert all(same(x, y) for a, b in zip(found, one_by_one, strict=True) for x, y in zip(a, b, strict=True))
    assert in_blocks.state_dict() == singly.state_dict()


def test_arrays_are_not_read_row_by_row() -> None:
    blocks = list(blocks_of(stream("tensor", "tensor", "classes"), 32))
    assert [block.count for block in blocks] == [32, 32, 32, 4]
    assert all(block.samples is None for block in blocks)


@pytest.mark.parametrize("backwards", ["raise", "skip"])
@pytest.mark.parametrize("read", [list, lambda stream: flat(stream, 3)], ids=["rows", "blocks"])
def test_an_input_is_held_over_the_gap_after_it(read, backwards) -> None:
    times, u = torch.tensor([0.0, 0.5, 2.0, 2.25, 6.0]).double(), torch.arange(5.0)[:, None]
    if backwards == "skip":
        times, u = torch.cat([times[:3], times[:1], times[3:]]), torch.cat([u[:3], u[:1] - 9, u[3:]])

    def stream(**given) -> streams.Stream:
        return streams.timed(times, u, unit=0.5, gap="after", backwards=backwards, **given)

    assert [(s.u.item(), s.tau) for s in read(stream())] == [(0, 1), (1, 3), (2, 0.5), (3, 7.5), (4, None)]
    assert read(stream(first=2.0))[-1].tau == 2.0
    streams.check(stream)


def test_a_block_keeps_its_samples_when_the_arrays_are_written_to() -> None:
    u, target = torch.ones(COUNT, 3), np.ones(COUNT)
    block = next(iter(blocks_of(streams.timed(seconds(), u, target), 8)))
    u.zero_()
    target[:] = 0
    assert torch.equal(block.sample(3).u, torch.ones(3))
    assert block.sample(3).target.item() == 1.0


@pytest.mark.parametrize("place", [0, 1, 40, 99])
@pytest.mark.parametrize("how", ["back", "still", "nan", "infinite"])
def test_a_stamp_that_does_not_move_forward_is_named_or_left_out_as_one_by_one(place, how) -> None:
    def made(**settings) -> streams.Stream:
        times = seconds()
        times[place] = {"back": 0.0, "still": times[place - 1], "nan": np.nan, "infinite": np.inf}[how]
        return streams.timed(times, torch.arange(COUNT)[:, None].float(), unit=1.0, **settings)

    def told(read) -> tuple[list, str]:
        got = []
        try:
            for sample in read:
                got.append(sample)
        except SampleError as error:
            return parts(got), str(error)
        return parts(got), ""

    def one_each(source):
        for block in blocks_of(source, 16):
            yield from (block.sample(k) for k in range(block.count))

    for settings in ({}, {"backwards": "skip"}, {"ties": 0.01}):
        source = made(**settings)
        want, got = told(made(**settings)), told(one_each(source))
        assert want[1] == got[1]
        assert len(want[0]) == len(got[0])
        assert all(same(x, y) for a, b in zip(want[0], got[0], strict=True) for x, y in zip(a, b, strict=True))
