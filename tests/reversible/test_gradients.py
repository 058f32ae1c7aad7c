import copy

import pytest
import torch
from torch import nn

from hamlearn.reversible import AntisymmetricLinear, Midpoint, MidpointSequential

MODES = ("reversible", "stored", "checkpoint")


def close(a, b, rtol=1e-12):
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name] - b[name]).norm() <= rtol * b[name].norm() + 1e-300, name


def literal(field_of, steps, tau, snap):
    """The midpoint rule in plain autograd, one equation per line."""

    def net(h0, u):
        h = [snap(h0)]
        h.append(h[0] + snap(tau * field_of(0)(u, h[0])))
        for k in range(1, steps):
            h.append(h[k - 1] + snap(tau * field_of(k)(u, h[k])))
        return h[steps]

    return net


class Literal(nn.Module):
    def __init__(self, fields, steps, tau, quantum):
        super().__init__()
        self.fields = nn.ModuleList(fields)

        def snap(x):
            return x if quantum is None else x + (torch.round(x / quantum) * quantum - x).detach()

        self.net = literal(lambda k: self.fields[k % len(self.fields)], steps, tau, snap)

    def forward(self, h, u):
        return self.net(h, u)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 100, 500])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("memory", MODES)
def test_shared_field_has_the_gradients_of_plain_autograd(steps, exact, memory, two_layers, run):
    torch.manual_seed(0)
    field = two_layers().double()
    tau = 0.02
    ours = run(Midpoint(field, steps, tau, exact, memory, bound=1024.0))
    reference = run(Literal([field], steps, tau, 2.0 ** (10 - 53) if exact else None))
    close(dict(zip(ours, ours.values(), strict=True)), dict(zip(ours, reference.values(), strict=True)))


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 100, 500])
@pytest.mark.parametrize("memory", MODES)
def test_one_field_per_step_has_the_gradients_of_plain_autograd(steps, memory, two_layers, run):
    torch.manual_seed(0)
    fields = [two_layers().double() for _ in range(steps)]
    ours = run(MidpointSequential(*fields, tau=0.02, memory=memory, bound=1024.0))
    reference = run(Literal(fields, steps, 0.02, 2.0 ** (10 - 53)))
    close(ours, reference)


@pytest.mark.parametrize("steps", [1, 2, 7, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_gradients_equal_stored_ones_to_the_bit(steps, dtype, two_layers, run):
    torch.manual_seed(0)
    field = two_layers().to(dtype)
    rebuilt = run(Midpoint(field, steps, 0.1), dtype=dtype)
    stored = run(Midpoint(field, steps, 0.1, memory="stored"), dtype=dtype)
    # The sum of three terms that makes up the gradient of h_0 has another order, its last bit may differ.
    torch.testing.assert_close(
        rebuilt.pop("h"), stored.pop("h"), rtol=1e-5 if dtype == torch.float32 else 1e-13, atol=0
    )
    assert all(torch.equal(rebuilt[name], stored[name]) for name in stored)


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_gradcheck_passes_without_a_grid(memory, steps, two_layers):
    torch.manual_seed(0)
    field = two_layers(4).double()
    net = Midpoint(field, steps, 0.3, exact=False, memory=memory)
    h = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    u = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in field.named_parameters()]

    def loss(h, u, *theta):
        # gradcheck moves the weights in place, the field reads them where they are
        return net(h, u)

    theta = tuple(field.get_parameter(name) for name in names)
    assert torch.autograd.gradcheck(loss, (h, u, *theta), fast_mode=False)


def test_two_steps_are_a_block_of_a_reversible_residual_network():
    torch.manual_seed(0)
    tau = 0.5
    start, F, G = (AntisymmetricLinear(6).double() for _ in range(3))
    h0 = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    net = MidpointSequential(start, F, G, tau=tau, exact=False)
    y2 = net(h0)
    ours = torch.autograd.grad(y2.sin().sum(), [h0, *net.parameters()])

    x1, x2 = h0, h0 + tau * start(None, h0)
    y1 = x1 + tau * F(None, x2)
    y2_block = x2 + tau * G(None, y1)
    block = torch.autograd.grad(y2_block.sin().sum(), [h0, *net.parameters()])
    torch.testing.assert_close(y2, y2_block, rtol=1e-14, atol=0)
    for a, b in zip(ours, block, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_u_may_be_a_tree_of_which_part_wants_a_gradient():
    class Driven(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

        def forward(self, u, h):
            return torch.tanh(h @ self.w + u["a"] * u["pair"][0] + u["pair"][1][u["index"]])

    grads = []
    for memory in MODES:
        torch.manual_seed(0)
        net = Midpoint(Driven(), 20, 0.1, memory=memory)
        a = torch.randn(4, dtype=torch.float64, requires_grad=True)
        b = torch.randn(4, dtype=torch.float64)
        c = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        out = net(torch.zeros(2, 4, dtype=torch.float64), {"a": a, "pair": (b, c), "index": torch.tensor([0, 2])})
        out.square().sum().backward()
        assert b.grad is None
        grads.append({"a": a.grad, "c": c.grad, "w": net.field.w.grad})
    close(grads[0], grads[1])
    close(grads[2], grads[1])


@pytest.mark.parametrize("memory", MODES)
def test_only_weights_that_require_a_gradient_get_one(memory, two_layers, run):
    torch.manual_seed(0)
    field = two_layers().double()
    whole = run(Midpoint(field, 30, 0.1, memory="stored"))
    field.a.requires_grad_(False)
    field.b.bias.requires_grad_(False)
    part = run(Midpoint(field, 30, 0.1, memory=memory))
    assert {"field.a.weight", "field.a.bias", "field.b.bias"} == whole.keys() - part.keys()
    close(part, {name: whole[name] for name in part})


def test_weights_get_gradients_when_neither_h_nor_u_wants_one(two_layers):
    torch.manual_seed(0)
    net = Midpoint(two_layers().double(), 10, 0.1)
    net(torch.ones(2, 6, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_one_module_may_be_used_twice_in_one_graph(two_layers):
    grads = []
    for memory in MODES:
        torch.manual_seed(0)
        net = Midpoint(two_layers().double(), 15, 0.1, memory=memory)
        h = torch.randn(2, 6, dtype=torch.float64)
        u = torch.randn(2, 3, dtype=torch.float64)
        net(net(h, u).tanh(), u + 1).square().sum().backward()
        grads.append({name: p.grad for name, p in net.named_parameters()})
    close(grads[0], grads[1])
    close(grads[2], grads[1])


def test_a_field_given_twice_shares_its_weights(run):
    class Driven(AntisymmetricLinear):
        pass

    torch.manual_seed(0)
    a, b = (Driven(6, inputs=3).double() for _ in range(2))
    rebuilt = run(MidpointSequential(a, b, a, a, b, tau=0.1))
    stored = run(MidpointSequential(a, b, a, a, b, tau=0.1, memory="stored"))
    close(rebuilt, stored)


@pytest.mark.parametrize("memory", MODES)
def test_a_reversible_module_may_be_the_field_of_another(memory, two_layers, run):
    class Inner(nn.Module):
        def __init__(self, memory):
            super().__init__()
            self.chain = Midpoint(two_layers().double(), 4, 0.1, memory=memory)

        def forward(self, u, h):
            return torch.tanh(self.chain(h, u) - h)

    torch.manual_seed(0)
    nested = Midpoint(Inner(memory), 6, 0.2)
    plain = copy.deepcopy(nested)
    plain.memory = plain.field.chain.memory = "stored"
    close(run(nested), run(plain))


def test_backward_may_be_run_twice_on_a_retained_graph(two_layers):
    torch.manual_seed(0)
    net = Midpoint(two_layers().double(), 15, 0.1)
    out = net(torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)).sum()
    first = torch.autograd.grad(out, list(net.parameters()), retain_graph=True)
    second = torch.autograd.grad(out, list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_grad_and_inference_mode_give_the_same_state(two_layers):
    torch.manual_seed(0)
    net = Midpoint(two_layers(), 15, 0.1)
    h, u = torch.randn(2, 6), torch.randn(2, 3)
    out = net(h, u)
    with torch.no_grad():
        quiet = net(h, u)
    with torch.inference_mode():
        inference = net(h, u)
    assert out.requires_grad
    assert not quiet.requires_grad
    assert torch.equal(out, quiet)
    assert torch.equal(out, inference)


def test_a_field_that_does_not_depend_on_the_state_passes_the_costate_through():
    h = torch.randn(3, requires_grad=True)
    Midpoint(lambda u, h: torch.ones(3), 7, 0.1)(h).sum().backward()
    assert torch.equal(h.grad, torch.ones(3))
