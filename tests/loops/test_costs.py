"""Steps that are faster in the eager engine stay there; loops that were asked for are made all the same."""

import warnings

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops import scan


def run(layer: nn.Module, u: torch.Tensor) -> hl.StepReport:
    torch.manual_seed(0)
    learner = hl.Learner(hl.Network.feedforward(layer), nn.functional.mse_loss, hl.Hyper(beta=1e-6))
    target = torch.zeros_like(layer(u)).detach()
    return list(learner.run([hl.Sample(u, target)] * 2, engine="compiled"))[-1]


@pytest.mark.parametrize(
    ("layer", "u", "reason"),
    [
        (nn.Conv2d(1, 1, 32), torch.ones(1, 1, 64, 64), "a convolution whose kernel meets 1,115,136 numbers"),
        (nn.ConvTranspose2d(1, 1, 32), torch.ones(1, 1, 33, 33), "a convolution whose kernel meets 1,115,136"),
        (
            nn.Conv2d(8, 8, 20, groups=8),
            torch.ones(1, 8, 60, 60),
            "a convolution in 8 groups with 5,379,200",
        ),
    ],
)
def test_a_learner_leaves_large_convolutions_to_the_eager_engine_and_says_why(layer, u, reason):
    with pytest.warns(RuntimeWarning, match=f"falls back to the eager engine: {reason}"):
        run(layer, u)


def test_a_small_convolution_is_compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(nn.Conv2d(1, 2, 3), torch.ones(1, 1, 8, 8)).loss.isfinite()


def test_a_scan_compiles_what_a_learner_leaves_to_the_eager_engine():
    x, weight = torch.ones(2, 1, 1, 64, 64, dtype=torch.float64), torch.ones(1, 1, 32, 32, dtype=torch.float64)
    _, rows = scan(lambda carry, x: (carry, torch.conv2d(x, weight).sum()), torch.zeros(()), x)
    assert rows.tolist() == [1_115_136.0] * 2
