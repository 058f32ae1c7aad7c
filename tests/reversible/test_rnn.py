import pytest
import torch
from torch import nn
from torch.nn import functional

from hamlearn.reversible import AntisymmetricLinear, MidpointRNN

MODES = ("reversible", "stored", "checkpoint")


class Readout(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, u, h):
        return torch.tanh(self.linear(h)) * (1 + u.mean())


def literal(field, readout, tau, u, h0):
    """The midpoint rule token by token, in plain autograd."""
    h = [h0, h0 + tau * field(u[0], h0)]
    for k in range(1, len(u)):
        h.append(h[k - 1] + tau * field(u[k], h[k]))
    return torch.stack([readout(u[k], h[k + 1]) for k in range(len(u))]), h[-1]


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 40])
def test_bptt_gradients_are_those_of_plain_autograd(memory, tokens):
    torch.manual_seed(0)
    field, readout = AntisymmetricLinear(6, inputs=3).double(), Readout(6, 2).double()
    u = torch.randn(tokens, 4, 3, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    leaves = [u, h0, *field.parameters(), *readout.parameters()]
    found = []
    for exact in (False, None):
        if exact is None:
            y, h = literal(field, readout, 0.2, u, h0)
        else:
            y, h = MidpointRNN(field, 0.2, readout, exact, memory)(u, h0)
        found.append([y, h, *torch.autograd.grad(y.square().sum() + h.sin().sum(), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_exact_mode_agrees_with_stored_mode_over_a_long_sequence():
    found = []
    for memory in MODES:
        torch.manual_seed(0)
        net = MidpointRNN(AntisymmetricLinear(6, inputs=3).double(), 0.1, Readout(6, 2).double(), memory=memory)
        u = torch.randn(2000, 1, 3, dtype=torch.float64, requires_grad=True)
        y, h = net(u, torch.zeros(1, 6, dtype=torch.float64))
        y.square().mean().backward()
        found.append([y, h, u.grad, *(p.grad for p in net.parameters())])
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert torch.equal(found[0][1], other[1])
        for a, b in zip(found[0], other, strict=True):
            assert (a - b).norm() <= 1e-12 * b.norm()


def test_without_a_readout_only_the_last_state_is_returned():
    net = MidpointRNN(AntisymmetricLinear(6, inputs=3), 0.1)
    y, h = net(torch.zeros(5, 2, 3), torch.zeros(2, 6))
    assert y is None
    assert h.shape == (2, 6)


class Tokens(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.core = AntisymmetricLinear(width, inputs=width, limit=2.0)

    def forward(self, u, h):
        return self.core(self.embedding(u["token"]), h)


class TokenLoss(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.linear = nn.Linear(width, vocabulary)

    def forward(self, u, h):
        return functional.cross_entropy(self.linear(h), u["target"], reduction="none")


def test_tokens_with_a_loss_each_are_learned_over_a_sequence_of_a_thousand():
    torch.manual_seed(0)
    tokens = torch.randint(4, (1001, 1)).cumsum(0) % 4
    u = {"token": tokens[:-1], "target": tokens[:-1]}
    net = MidpointRNN(Tokens(16, 4), 0.1, TokenLoss(16, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    losses = []
    for _ in range(4):
        y, _ = net(u, torch.zeros(1, 16))
        assert y.shape == (1000, 1)
        optimizer.zero_grad()
        y.mean().backward()
        optimizer.step()
        losses.append(y.mean().item())
    assert losses[-1] < losses[0]


def test_outputs_without_a_loss_are_not_evaluated_again():
    class Counted(Readout):
        calls = 0

        def forward(self, u, h):
            Counted.calls += 1
            return super().forward(u, h)

    net = MidpointRNN(AntisymmetricLinear(6, inputs=3), 0.1, Counted(6, 2))
    _, h = net(torch.zeros(5, 2, 3), torch.zeros(2, 6))
    h.sum().backward()
    assert Counted.calls == 5
