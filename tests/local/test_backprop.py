"""One group in sequential order is plain BackPropagation with momentum."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import LocalLearner
from tests.local.cases import chain, skips

mse = nn.functional.mse_loss


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_group_in_sequential_order_follows_sgd_bit_for_bit(momentum, dtype, align):
    module = chain(3, 5, 5, 2).to(dtype)
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=momentum)
    hyper = hl.Hyper.from_sgd(lr=0.05, momentum=momentum)
    learner = LocalLearner(module, mse, hyper, groups=1, order="sequential", align=align)
    for _ in range(100):
        u, target = torch.randn(4, 3, dtype=dtype), torch.randn(4, 2, dtype=dtype)
        optimizer.zero_grad()
        loss = mse(twin(u), target)
        loss.backward()
        optimizer.step()
        report = learner.step(hl.Sample(u, target))
        assert torch.equal(report.loss, loss.detach())
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_one_group_of_a_graph_follows_dampened_sgd(tau):
    module = skips()
    twin = copy.deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.8, dampening=0.4)
    hyper = hl.Hyper.from_sgd(lr=0.05, momentum=0.8, dampening=0.4, tau=tau)
    learner = LocalLearner(module, mse, hyper, groups=1, order="sequential")
    for _ in range(100):
        u, target = torch.randn(4, 3), torch.randn(4, 2)
        optimizer.zero_grad()
        node = twin.nodes
        a = node["a"](u)
        mse(node["out"](node["add"](node["c"](node["b"](a)), a), u), target).backward()
        optimizer.step()
        learner.step(hl.Sample(u, target))
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-12
