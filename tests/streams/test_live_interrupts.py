"""A learner that is interrupted leaves a live feed where its last whole step stands."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from hamlearn import streams

COUNT = 10


def items(count: int = COUNT) -> list[hl.Sample]:
    u = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [hl.Sample(u[k], u[k].sum(0, keepdim=True), 0.5 + k % 3) for k in range(count)]


def bare(y: torch.Tensor, target) -> torch.Tensor:
    return mse_loss(y, target[0] if isinstance(target, tuple) else target)


def learner(loss=bare) -> hl.Learner:
    torch.manual_seed(0)
    network = hl.Network.feedforward(nn.Linear(3, 1).double())
    return hl.Learner(network, loss, hl.Hyper.from_sgd(lr=0.05, momentum=0.5))


def theta(one: hl.Learner) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in one.network.parameters()])


def around(feed: streams.Stream) -> streams.Stream:
    return streams.standardize(streams.take(streams.clip_tau(feed, 1.0), COUNT))


class Breaks:
    """A loss that is interrupted at some of its calls."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.count = calls, 0

    def __call__(self, y: torch.Tensor, target) -> torch.Tensor:
        self.count += 1
        if self.count in self.calls:
            raise KeyboardInterrupt
        return bare(y, target)


@pytest.mark.parametrize("wrap", [lambda feed: feed, around], ids=["feed", "around"])
@pytest.mark.parametrize("form", ["samples", "messages", "trees"])
def test_a_sample_whose_step_is_interrupted_is_handed_out_again(wrap, form) -> None:
    given = items()
    source = {
        "samples": given,
        "messages": [{"u": s.u.tolist(), "target": s.target.tolist(), "tau": s.tau} for s in given],
        "trees": [hl.Sample(s.u, (s.target,), s.tau) for s in given],
    }[form]
    settings = {"dtype": torch.float64, "target_dtype": torch.float64}
    whole, one = learner(), learner(Breaks(1, 5, 6, 12))
    with streams.live(list(source), policy="block", **settings) as feed:
        list(whole.run(wrap(feed)))
    interrupts = 0
    with streams.live(list(source), policy="block", **settings) as feed:
        stream = wrap(feed)
        while one.position < COUNT:
            try:
                list(one.run(stream, resume=True))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 4
    assert (feed.taken, one.position) == (COUNT, COUNT)
    assert torch.equal(theta(one), theta(whole))


def test_the_place_after_an_interrupt_is_that_before_the_step() -> None:
    places = []
    for one, steps in ((learner(Breaks(5)), None), (learner(), 4)):
        with streams.live(items(), policy="block") as feed:
            try:
                list(one.run(around(feed), max_steps=steps))
            except KeyboardInterrupt:
                assert steps is None
            places.append(one._reader.state_dict())
    assert places[0] == places[1]
