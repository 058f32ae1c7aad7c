"""Losses that are differentiated without a graph give the same bits as autograd."""

import pytest
import torch
from torch.nn import functional

from hamlearn.rules.local.losses import without_graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3), (7, 5), (4, 1)])
@pytest.mark.parametrize("loss", [functional.mse_loss, functional.cross_entropy])
def test_loss_and_derivative_are_those_of_autograd_to_the_bit(loss, shape, dtype):
    torch.manual_seed(0)
    y = torch.randn(shape, dtype=dtype, requires_grad=True)
    target = torch.randn(shape, dtype=dtype) if loss is functional.mse_loss else torch.randint(shape[1], shape[:1])
    L = loss(y, target)
    (expected,) = torch.autograd.grad(L, y)
    got, derivative = without_graph(loss)(y.detach(), target)
    assert torch.equal(got, L.detach())
    assert torch.equal(derivative, expected)


def test_ignored_classes_are_ignored():
    y, target = torch.randn(3, 4, requires_grad=True), torch.tensor([1, -100, 3])
    (expected,) = torch.autograd.grad(functional.cross_entropy(y, target), y)
    assert torch.equal(without_graph(functional.cross_entropy)(y.detach(), target)[1], expected)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (functional.mse_loss, torch.zeros(3)),
        (functional.mse_loss, torch.zeros(3, 4, dtype=torch.float64)),
        (functional.mse_loss, 1.0),
        (functional.cross_entropy, torch.zeros(3, 4, dtype=torch.float32)),
        (functional.cross_entropy, torch.tensor([0, 9, 1])),
        (functional.cross_entropy, torch.tensor([0, 1])),
    ],
)
def test_arguments_of_another_kind_are_left_to_the_loss_itself(loss, target):
    assert without_graph(loss)(torch.zeros(3, 4, dtype=torch.float32), target) is None


def test_other_losses_are_not_known():
    assert without_graph(functional.l1_loss) is None
