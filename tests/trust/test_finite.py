"""One look for what is not finite, wherever it is asked for."""

import math

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn._base.finite import all_finite, is_finite, what_is_not
from hamlearn.errors import NonFiniteError

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_single_bad_entry_is_found_wherever_it_stands(bad):
    for place in range(5):
        x = torch.zeros(5)
        x[place] = bad
        assert not all_finite([torch.ones(3), x])
        assert not is_finite({"a": (torch.ones(3), [x])})
        assert not is_finite((1, None, x.numpy()))
    assert not is_finite([1.0, bad])
    assert not is_finite(np.float32(bad))


def test_large_entries_are_finite_though_their_sum_is_not():
    x = torch.full((8,), LARGEST)
    assert x.sum().isinf()
    assert is_finite(x)
    assert all_finite([x, x])


def test_what_belongs_to_others_is_read_alone():
    x = torch.ones(4)
    assert is_finite(x)
    assert x._version == 0


@pytest.mark.parametrize("learner", ["plain", "local"])
def test_both_learners_say_what_is_not_finite_and_stay_as_they_were(learner):
    net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    mse = torch.nn.functional.mse_loss
    made = (
        hl.Learner(hl.Network.feedforward(net), mse)
        if learner == "plain"
        else hl.local.LocalLearner(net, mse, hl.Hyper())
    )
    before = [weight.detach().clone() for weight in net.parameters()]
    with pytest.raises(
        NonFiniteError, match=r"(target is not finite|loss is nan) at t=0: .*the last good state is kept"
    ):
        made.step(hl.Sample(torch.ones(1, 2), torch.full((1, 1), math.nan)))
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))


def test_the_first_part_that_is_not_finite_is_named():
    bad = torch.tensor([1.0, math.inf])
    parts = [("h", [torch.ones(1)]), ("omega of {}", {"a": torch.ones(1), "b": bad, "c": bad}), ("z", [bad])]
    assert what_is_not(parts, "nothing") == "omega of b, c"
    assert what_is_not(parts[:1], "nothing") == "nothing"
