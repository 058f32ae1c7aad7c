"""What makes a stream ready passes whole blocks on, with the bits of single rows."""

import math
from dataclasses import replace

import pytest
import torch

from hamlearn import Sample, streams
from hamlearn.errors import SampleError
from tests.streams.reading import blocks_of


def welford(rows, clip=10.0):
    """Each entry standardised by Welford's recursion, a row and a number at a time."""
    means, squares, out = [0.0] * len(rows[0]), [0.0] * len(rows[0]), []
    for n, row in enumerate(rows, 1):
        for k, value in enumerate(row):
            off = value - means[k]
            means[k] += off / n
            squares[k] += off * (value - means[k])
        spreads = [math.sqrt(square / n) for square in squares]
        out.append(
            [
                max(-clip, min(clip, (value - mean) / spread)) if spread > 0 else 0.0
                for value, mean, spread in zip(row, means, spreads, strict=True)
            ]
        )
    return torch.tensor(out, dtype=torch.float64)


def data(n=700):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    # Small, far from zero, drifting, and without any change.
    return (
        noise * torch.tensor([1e-3, 2.0, 1.0, 0.0])
        + torch.tensor([0.0, 1e6, 0.0, 3.0])
        + torch.stack([torch.zeros(n), torch.zeros(n), torch.linspace(0, 50, n), torch.zeros(n)], 1)
    )


def flat(blocks):
    return [block.sample(k) for block in blocks for k in range(block.count)]


def test_standardised_blocks_follow_welfords_recursion():
    u = data()
    rows = torch.stack([sample.u for sample in streams.standardize(streams.from_any(u))])
    true = welford(u.tolist())
    assert torch.equal(rows[:, 3], torch.zeros(700))
    # Both round: an entry of 1e6 ± 2 is known to 1e-10 of its spread.
    assert (rows[:, [0, 2]] - true[:, [0, 2]]).abs().max() < 1e-12
    assert (rows[:, 1] - true[:, 1]).abs().max() < 1e-9


def test_categories_and_signs_of_gaps_are_not_standardised():
    rows = [{"x": 10.0, "kind": "a"}, {"x": 30.0, "kind": "b"}, {"x": None, "kind": "a"}]
    table = streams.from_rows(rows, categories={"kind": ["a", "b"]}, missing="indicate")
    for stream in (streams.standardize(table), streams.standardize(streams.clip_tau(streams.take(table, 3), 1.0))):
        assert [s.u.tolist()[1:] for s in stream] == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
        assert [s.u.tolist()[0] for s in stream] == [0.0, 1.0, 0.0]


def test_an_input_that_would_spoil_all_means_is_refused_after_the_good_ones():
    u = [[1.0], [3.0], [math.nan], [5.0]]
    rows = iter(streams.standardize(u))
    assert [next(rows).u.item() for _ in range(2)] == [0.0, 1.0]
    blocks = blocks_of(streams.standardize(streams.from_any(torch.tensor(u))), 4)
    assert next(blocks).u[0].tolist() == [[0.0], [1.0]]
    for broken in (rows, blocks):
        with pytest.raises(SampleError, match=r"not finite.* use finite\(stream"):
            next(broken)
    with pytest.raises(SampleError, match=r"inputs of shape \[1\], and now one of \[2\]"):
        list(streams.standardize([[1.0], [1.0, 2.0]]))


CHANGED = {
    "map": lambda given: streams.map(given, lambda sample: replace(sample, u=3 * sample.u, tau=2 * sample.tau)),
    "finite, skipping": lambda given: streams.finite(given, "skip"),
}


def test_an_error_of_a_guard_or_a_mapped_function_comes_after_the_samples_before_it():
    given = [Sample(torch.full((1,), math.nan if k == 5 else float(k))) for k in range(9)]

    def refuse(sample):
        if sample.u.isnan():
            raise ValueError("no")
        return sample

    for stream, error in ((streams.finite(given), SampleError), (streams.map(given, refuse), ValueError)):
        blocks = blocks_of(stream, 100)
        assert [sample.u.item() for sample in flat([next(blocks)])] == [0.0, 1.0, 2.0, 3.0, 4.0]
        with pytest.raises(error):
            next(blocks)


def test_finite_blocks_pass_whole_and_what_guards_or_maps_a_live_feed_waits_for_no_more():
    table = streams.from_any((data(), data()[:, :1]))
    (block,) = blocks_of(streams.finite(table), 1000)
    assert block.samples is None, "no sample was taken out of the block"
    for make in CHANGED.values():
        with streams.live([Sample(torch.ones(2), tau=1.0)] * 50, policy="block") as feed:
            stream = make(feed)
            assert stream.live
            assert len(flat(blocks_of(stream, 16))) == 50


def test_interleaved_streams_tell_which_entries_are_measured():
    rows = [{"x": 1.0, "shop": "north", "y": 1}, {"x": 2.0, "shop": "south", "y": 0}]

    def table():
        return streams.from_rows(rows, ["x", "shop"], "y", categories={"shop": ["north", "south"]})

    mixed = streams.interleave(table(), table())
    assert mixed.numbers == table().numbers == [True, False, False]
    standard = list(streams.standardize(mixed))
    assert [sample.u[1:].tolist() for sample in standard] == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert streams.interleave(table(), streams.from_any(data())).numbers is None
