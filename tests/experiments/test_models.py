"""The paper's models have the shapes that the paper says, learn, and are followed bit-for-bit."""

import pytest
import torch
from torch import nn

from hamlearn.experiments.comparison import Difference, train_hl, train_sgd
from hamlearn.experiments.models import MODELS, ViT
from hamlearn.experiments.scenarios import SCENARIOS

INPUTS = {"Iris": (1, 4), "MNIST": (1, 1, 28, 28), "IMDb": (1, 7, 50)}
CLASSES = {"Iris": 3, "MNIST": 10, "IMDb": 2}


def problem(model, dtype=torch.float32, samples=6):
    torch.manual_seed(1)
    module = model.make(CLASSES[model.data]).to(dtype)
    data = [
        (torch.randn(INPUTS[model.data]).to(dtype), torch.randint(CLASSES[model.data], (1,)))
        for _ in range(samples)
    ]
    return module, data


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_one_score_per_class(name):
    module, data = problem(MODELS[name])
    assert module(data[0][0]).shape == (1, CLASSES[MODELS[name].data])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", MODELS)
def test_output_nets_equal_sgd_bit_for_bit_in_float32(name, scenario):
    module, data = problem(MODELS[name])
    sgd = train_sgd(module, data, 3, SCENARIOS[scenario])
    hl = train_hl(module, data, 3, SCENARIOS[scenario], "output")
    assert Difference.between(hl, sgd).max == 0.0
    assert torch.equal(hl.loss, sgd.loss)
    assert torch.equal(hl.correct, sgd.correct)
    moved = [not torch.equal(weight, hl.weights[key].to(weight)) for key, weight in module.named_parameters()]
    assert any(moved)


@pytest.mark.parametrize("name", MODELS)
def test_state_nets_and_split_nets_follow_sgd_in_float64(name):
    module, data = problem(MODELS[name], torch.float64)
    sgd = train_sgd(module, data, 3, SCENARIOS["Mom-a"])
    for how in MODELS[name].implementations[1:]:
        assert Difference.between(train_hl(module, data, 3, SCENARIOS["Mom-a"], how), sgd).max <= 1e-14


def test_the_vision_transformer_is_as_small_as_the_papers():
    module = ViT(10)
    assert module.patches.kernel_size == (7, 7)
    assert module.attention.num_heads == 1
    assert sum(isinstance(part, nn.LayerNorm) for part in module.modules()) == 1
    assert [tuple(part.weight.shape) for part in module.feedforward if isinstance(part, nn.Linear)] == [(30, 30)]


def test_the_residual_net_has_four_blocks_and_no_statistics_of_batches():
    module = MODELS["ResNet"].make(10)
    assert sum(type(part).__name__ == "Residual" for part in module) == 4
    assert not list(module.buffers())


def test_differences_of_different_models_are_refused():
    runs = [train_sgd(*problem(MODELS[name]), 1, SCENARIOS["GD-a"]) for name in ("Linear", "MLP")]
    with pytest.raises(ValueError, match="different models"):
        Difference.between(*runs)
