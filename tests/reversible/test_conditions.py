"""Dropout, batch normalisation and autocast: rebuilt steps run under the conditions of the forward ones."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from hamlearn.reversible import Midpoint, MidpointRNN, MidpointSequential

MODES = ("reversible", "checkpoint")


class Block(nn.Module):
    def __init__(self, *middle):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)
        self.middle = nn.Sequential(*middle)

    def forward(self, u, h):
        return self.b(self.middle(torch.tanh(self.a(h))))


def twice(net, memory, seed=5, context=None):
    """Two training steps; all that a user can see of them."""
    net = copy.deepcopy(net)
    net.memory = memory
    h = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.manual_seed(seed)
    outs = []
    for _ in range(2):
        if context is None:
            out = net(h)
        else:
            with context():
                out = net(h)
        out.square().mean().backward()
        outs.append(out.detach())
    seen = {f"out{i}": o for i, o in enumerate(outs)} | {"h": h.grad, "random": torch.rand(3)}
    seen |= {name: p.grad for name, p in net.named_parameters()}
    return seen | {name: b.clone() for name, b in net.named_buffers()}


def same(a, b, rtol=0.0):
    assert a.keys() == b.keys()
    for name in a:
        tolerance = rtol if a[name].is_floating_point() and rtol else 1e-6 * (name == "h")
        torch.testing.assert_close(
            a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("memory", MODES)
def test_dropout_gives_the_result_of_the_stored_mode_to_the_bit(memory):
    torch.manual_seed(0)
    net = Midpoint(Block(nn.Dropout(0.3)), 12, 0.1)
    same(twice(net, memory), twice(net, "stored"))


def test_dropout_differs_from_step_to_step_and_from_run_to_run():
    seen = []

    def masked(u, h):
        mask = functional.dropout(torch.ones(200), 0.5)
        seen.append(mask)
        return 0 * h + mask.mean()

    net = Midpoint(masked, 3, 0.1)
    for _ in range(2):
        net(torch.zeros(2))
    assert len({tuple(mask.tolist()) for mask in seen}) == 6


def test_random_numbers_are_not_replayed_when_that_is_turned_off():
    before = torch.random.get_rng_state()
    Midpoint(lambda u, h: -h, 3, 0.1, preserve_rng=False)(torch.zeros(2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_backward_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    net = Midpoint(Block(nn.Dropout(0.3)), 5, 0.1)
    out = net(torch.randn(8, 6)).sum()
    before = torch.random.get_rng_state()
    out.backward()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("memory", MODES)
def test_batch_norm_statistics_are_updated_once_and_gradients_agree(memory):
    torch.manual_seed(0)
    net = Midpoint(Block(nn.BatchNorm1d(8)), 12, 0.1)
    ours, stored = twice(net, memory), twice(net, "stored")
    assert ours["field.middle.0.num_batches_tracked"] == 24
    same(ours, stored)


@pytest.mark.parametrize("memory", MODES)
def test_batch_norm_per_layer_and_in_eval_mode(memory):
    torch.manual_seed(0)
    net = MidpointSequential(*(Block(nn.BatchNorm1d(8), nn.Dropout(0.2)) for _ in range(7)), tau=0.1)
    same(twice(net, memory), twice(net, "stored"))
    net.eval()
    same(twice(net, memory), twice(net, "stored"))


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("cache", [True, False])
def test_autocast_gives_the_result_of_the_stored_mode(memory, cache):
    torch.manual_seed(0)
    net = Midpoint(Block(nn.Dropout(0.3)), 12, 0.1)

    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache)

    ours, stored = twice(net, memory, context=context), twice(net, "stored", context=context)
    plain = twice(net, "stored")
    assert not torch.equal(plain["out0"], stored["out0"])  # autocast was on
    assert torch.equal(ours["out0"], stored["out0"])
    if cache:
        # One cast of the weights for all steps: the stored mode sums gradients in bfloat16, ours in float32.
        same(ours, stored, rtol=2e-2)
    else:
        same(ours, stored)


def test_autocast_leaves_weights_used_elsewhere_in_the_region_with_their_gradient():
    torch.manual_seed(0)
    field = Block()
    net = Midpoint(field, 4, 0.1)
    x = torch.randn(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x)
        loss = field(None, x).float().sum()
    loss.backward()
    assert field.a.weight.grad is not None


def test_backward_inside_autocast_does_not_change_a_run_outside_of_it():
    torch.manual_seed(0)
    net = Midpoint(Block(), 6, 0.1)
    x = torch.randn(3, 6)
    plain = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    out = net(x).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(out, list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))


def test_dropout_in_field_and_readout_of_a_recurrent_network():
    class Readout(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, u, h):
            return functional.dropout(self.linear(h), 0.5)

    found = []
    for memory in ("reversible", "stored", "checkpoint"):
        torch.manual_seed(0)
        net = MidpointRNN(Block(nn.Dropout(0.3)), 0.1, Readout(), memory=memory)
        torch.manual_seed(1)
        y, h = net(torch.zeros(20, 3, 1), torch.zeros(3, 6))
        (y.square().sum() + h.sum()).backward()
        found.append([y, h, *(p.grad for p in net.parameters())])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
