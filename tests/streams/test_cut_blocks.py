"""Samples that are read at one time and taken in several blocks: none is lost, none is taken twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, u):
        return self.linear(u).mean(0, keepdim=True)


def learner() -> hl.Learner:
    torch.manual_seed(0)
    return hl.Learner(hl.Network.feedforward(Mean().double()), mse_loss, hl.Hyper.from_sgd(lr=0.1))


def samples(count: int) -> list[hl.Sample]:
    """Batches whose size changes at every second or third sample."""
    g = torch.Generator().manual_seed(0)
    return [
        hl.Sample(torch.randn(1 + k // 2 % 3, 2, generator=g).double(), torch.full((1, 1), float(k)).double())
        for k in range(count)
    ]


def gap() -> list[hl.Sample]:
    return [hl.Sample(torch.full((2, 2), torch.nan).double(), torch.zeros(1, 1).double())] * 9


STREAMS = {
    "iterable": lambda: hl.streams.from_iterable(samples(23)),
    "taken": lambda: hl.streams.take(hl.streams.from_iterable(samples(40)), 23),
    "clipped": lambda: hl.streams.clip_tau(hl.streams.from_iterable(samples(23)), 1.0),
    "mapped": lambda: hl.streams.map(samples(23), lambda s: replace(s, target=2 * s.target)),
    "finite": lambda: hl.streams.finite([*samples(8), *gap(), *gap(), *samples(23)[8:]], "skip"),
    "delayed": lambda: hl.streams.delayed(samples(12), 2),
    "standardized": lambda: hl.streams.standardize(
        hl.streams.delayed([hl.Sample(s.u[:1], s.target) for s in samples(12)], 2)
    ),
    "lagged": lambda: hl.streams.autoregress(
        hl.streams.delayed([hl.Sample(s.u[0, :1], s.target[0]) for s in samples(12)], 2), 1
    ),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_run_that_is_broken_off_goes_on_with_the_very_next_sample(kind, tmp_path):
    whole, chunk = learner(), 7
    seen = [report.y for report in whole.run(STREAMS[kind](), engine="compiled", chunk=chunk)]
    assert len(seen) == 23 if kind in ("iterable", "taken", "clipped", "mapped", "finite") else len(seen) == 24
    eager = [report.y for report in learner().run(STREAMS[kind]())]
    for a, b in zip(seen, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    for stop in (3, 9, 14):
        first, stream = learner(), STREAMS[kind]()
        for count, _ in enumerate(first.run(stream, engine="compiled", chunk=chunk), 1):
            if count == stop:
                break
        first.save(tmp_path / "checkpoint")
        second = learner()
        second.load(tmp_path / "checkpoint")
        rest = [report.y for report in second.run(STREAMS[kind](), engine="compiled", chunk=chunk, resume=True)]
        assert len(rest) == len(seen) - stop
        for a, b in zip(rest, seen[stop:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
