import pytest
import torch
from torch import nn

from hamlearn.reversible import AntisymmetricLinear, Midpoint, MidpointSequential

STEPS = 100_000
WIDTH = 4


class Recorded(nn.Module):
    """Three fields side by side (stable, chaotic, random), and every state that they were shown."""

    def __init__(self, steps):
        super().__init__()
        seed = torch.Generator().manual_seed(3)
        A = torch.randn(3, WIDTH, WIDTH, generator=seed)
        stable, chaotic = 0.5 * (A[0] - A[0].T), 6.0 * (A[1] - A[1].T)
        self.register_buffer("W", torch.stack([stable, chaotic, 1e3 * A[2]]))
        self.shown = torch.zeros(2, steps, 3, WIDTH)
        self.calls = 0

    def forward(self, u, h):
        forward, k = divmod(self.calls, self.shown.shape[1])
        self.shown[forward, k] = h.detach()[:, 0]
        self.calls += 1
        # Of an argument in the thousands the sine keeps what rounding left: noise, yet deterministic.
        return torch.sin(torch.bmm(h, self.W))

    def rebuild_error(self):
        return (self.shown[0] - self.shown[1].flip(0)).abs().amax(dim=(0, 2))


class StatesAlone(Recorded):
    """Rates without a graph: the states are rebuilt all the same, and no costate grows without bound."""

    def forward(self, u, h):
        return super().forward(u, h).detach()


def rebuilt(steps, **options):
    field = StatesAlone(steps)
    h = torch.full((3, 1, WIDTH), 0.3, requires_grad=True)
    # The field draws no random numbers.
    Midpoint(field, steps, 0.05, bound=256.0, preserve_rng=False, **options)(h).sum().backward()
    assert field.calls == 2 * steps
    return field


@pytest.mark.slow
def test_rebuilt_states_equal_forward_states_bit_for_bit_after_100000_steps_where_floats_drift():
    field = rebuilt(STEPS, exact=True)
    assert torch.equal(field.shown[0], field.shown[1].flip(0))
    travelled = field.shown[0].diff(dim=0).abs().sum(dim=(0, 2))
    assert (travelled > 100).all()  # the states moved; equality is not for want of motion

    stable, chaotic, random = rebuilt(5_000, exact=False).rebuild_error()
    assert stable > 0
    assert chaotic > 1e-2
    assert random > 1e-2


def test_half_precision_states_are_rebuilt_exactly_too():
    class Half(Recorded):
        def forward(self, u, h):
            assert h.dtype == torch.bfloat16
            return super().forward(u, h.float()).bfloat16()

    field = Half(300)
    h = torch.full((3, 1, WIDTH), 0.3, dtype=torch.bfloat16, requires_grad=True)
    out = Midpoint(field, 300, 0.05)(h)
    out.float().sum().backward()
    assert out.dtype == h.grad.dtype == torch.bfloat16
    assert torch.equal(field.shown[0], field.shown[1].flip(0))


def test_a_float64_state_makes_the_grid_of_a_float32_field_finer():
    W = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    def turn(u, h):
        assert h.dtype == torch.float32
        return h @ W

    h = torch.tensor([[1.0, 0.0]])
    coarse = Midpoint(turn, 1000, 1e-3, bound=2.0**14)(h)
    fine = Midpoint(turn, 1000, 1e-3, bound=2.0**14, state_dtype=torch.float64)(h)
    true = Midpoint(lambda u, h: h @ W.double(), 1000, 1e-3, exact=False)(h.double())
    assert (fine - true).abs().max() < 1e-6 < (coarse - true).abs().max()


def test_a_long_chain_of_distinct_fields_trains():
    torch.manual_seed(0)
    net = MidpointSequential(*(AntisymmetricLinear(4) for _ in range(1000)), tau=0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    h, target = torch.randn(16, 4), torch.randn(16, 4)
    losses = []
    for _ in range(3):
        loss = (net(h) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]


class LaidOut(nn.Module):
    """A field of which the last bits depend on how the state lies in memory, as those of matrix products may."""

    def __init__(self, turned):
        super().__init__()
        self.turned = turned
        self.weight = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, u, h):
        rate = self.weight * h * (1.0 if h.is_contiguous() else 1.001)
        return rate.t().contiguous().t() if self.turned else rate.contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start", [lambda: torch.ones(3, 4).t(), lambda: torch.ones(4, 3)])
@pytest.mark.parametrize("state_dtype", [None, torch.float64])
def test_states_in_any_layout_are_rebuilt_bit_for_bit(dtype, start, state_dtype):
    fields = [LaidOut(turned).to(dtype) for turned in (True, False, False, True, True)]
    grads = []
    for memory in ("reversible", "stored", "checkpoint"):
        net = MidpointSequential(*fields, tau=0.1, memory=memory, state_dtype=state_dtype)
        net.zero_grad()
        net(start().to(dtype)).square().sum().backward()
        grads.append(torch.stack([field.weight.grad for field in fields]))
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(grads[2], grads[1])
