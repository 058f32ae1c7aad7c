import pytest
import torch
from torch import nn

from hamlearn.errors import ConfigError, NonFiniteError, SampleError
from hamlearn.reversible import (
    AntisymmetricConv,
    AntisymmetricLinear,
    GridOverflowError,
    Midpoint,
    MidpointRNN,
    MidpointSequential,
    RebuildError,
    ResidualField,
    TransformerField,
)

MODES = ("reversible", "stored", "checkpoint")


def growing(u, h):
    return torch.ones_like(h)


@pytest.mark.parametrize("memory", MODES)
def test_overflow_names_the_step_and_the_remedy(memory):
    h = torch.zeros(3, requires_grad=True)
    net = Midpoint(growing, 500, 1.0, bound=100.0, memory=memory)
    # h_1 = 1, h_2 = 1, h_3 = 2, h_4 = 2, …: 100 is reached at step 199.
    with pytest.raises(GridOverflowError, match=r"step 199 reached 100.*bound.*float64"):
        net(h)


def test_overflow_is_seen_at_the_start_and_without_gradients():
    with pytest.raises(GridOverflowError, match="step 0 reached 70"):
        Midpoint(growing, 5, 0.1)(torch.full((2,), 70.0))


def test_a_state_that_leaves_the_range_and_returns_is_still_an_error():
    def jump(u, h):
        jump.calls += 1
        return torch.full_like(h, {5: 1000.0, 7: -1000.0}.get(jump.calls, 0.0))

    jump.calls = 0
    with pytest.raises(GridOverflowError, match="step 5"):
        Midpoint(jump, 20, 1.0)(torch.zeros(2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_names_the_step(value):
    with pytest.raises(NonFiniteError, match="step 1 is"):
        Midpoint(lambda u, h: torch.full_like(h, value), 5, 0.1)(torch.zeros(2))


@pytest.mark.parametrize("memory", MODES)
def test_a_field_that_changes_the_shape_is_refused(memory):
    net = Midpoint(lambda u, h: h[..., :1], 5, 0.1, memory=memory)
    with pytest.raises(SampleError, match=r"step 0 returned shape \(2, 1\) for a state of shape \(2, 3\)"):
        net(torch.zeros(2, 3, requires_grad=True))


class Noisy(nn.Module):
    """Not a function of its arguments: the fourteenth call is off by a little."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, u, h):
        self.calls += 1
        return torch.sin(h) + (1e-3 if self.calls == 14 else 0.0)


def test_a_rebuild_that_misses_the_start_is_an_error():
    h = torch.ones(3, requires_grad=True)
    out = Midpoint(Noisy(), 10, 0.1)(h).sum()  # calls 1-10 forward, call 14 rebuilds step 6
    with pytest.raises(RebuildError, match="do not lead back to the start"):
        out.backward()


def test_a_weight_that_the_field_does_not_own_is_an_error_and_not_a_missing_gradient():
    w = torch.ones(3, requires_grad=True)
    h = torch.ones(3, requires_grad=True)
    with pytest.raises(ConfigError, match="not among its parameters"):
        Midpoint(lambda u, h: torch.sin(w * h), 5, 0.1)(h).sum().backward()
    Midpoint(lambda u, h: torch.sin(w * h), 5, 0.1, memory="stored")(h).sum().backward()
    assert w.grad is not None


def test_weights_exchanged_between_forward_and_backward_are_an_error():
    net = Midpoint(AntisymmetricLinear(3), 5, 0.1)
    net(torch.ones(1, 3)).sum().backward()
    others = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    out = torch.func.functional_call(net, others, (torch.ones(1, 3),)).sum()
    with pytest.raises(ConfigError, match="not among its parameters"):
        out.backward()


def test_weights_changed_in_place_before_the_backward_are_an_error():
    net = Midpoint(AntisymmetricLinear(3), 5, 0.1)
    out = net(torch.ones(1, 3)).sum()
    with torch.no_grad():
        net.field.A.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: Midpoint(f, 0, 0.1), "steps=0"),
        (lambda f: Midpoint(f, 2.5, 0.1), "steps=2.5"),
        (lambda f: Midpoint(f, 3, 0.0), "tau=0.0"),
        (lambda f: Midpoint(f, 3, float("nan")), "tau=nan"),
        (lambda f: Midpoint(f, 3, None), "tau=None"),
        (lambda f: Midpoint(f, 3, "0.1"), "tau='0.1'"),
        (lambda f: Midpoint(f, 3, 0.1, bound=None), "bound=None"),
        (lambda f: Midpoint(f, 3, 0.1, memory="none"), "memory='none'"),
        (lambda f: Midpoint(f, 3, 0.1, bound=0.0), "bound=0.0"),
        (lambda f: Midpoint(f, 3, 0.1, bound=float("inf")), "bound=inf"),
        (lambda f: Midpoint(f, 3, 0.1, state_dtype=torch.float16), "state_dtype"),
        (lambda f: MidpointSequential(tau=0.1), "0 fields"),
        (lambda f: MidpointSequential(torch.sin, tau=0.1), "not nn.Modules"),
        (lambda f: AntisymmetricConv(3, kernel=4), "kernel=4"),
        (lambda f: AntisymmetricConv(3, dims=4), "dims=4"),
        (lambda f: ResidualField(3), "width=3"),
        (lambda f: TransformerField(8, heads=3), "heads=3"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make(growing)


def test_states_and_sequences_that_cannot_work_are_refused():
    with pytest.raises(SampleError, match="int64"):
        Midpoint(growing, 3, 0.1)(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(SampleError, match=r"\[3, 4\] steps"):
        MidpointRNN(growing, 0.1)((torch.zeros(3, 1), torch.zeros(4, 1)), torch.zeros(1))
    with pytest.raises(SampleError, match=r"readout of step 1 returned shape \(1,\), those before it \(2,\)"):
        MidpointRNN(growing, 0.1, lambda u, h: h[: u[0]])(torch.tensor([[2], [1]]), torch.zeros(3))
    with pytest.raises(SampleError, match="at least one"):
        MidpointRNN(growing, 0.1)(torch.zeros(0, 1), torch.zeros(1))
    with pytest.raises(SampleError, match="the state h is of type list"):
        Midpoint(growing, 3, 0.1)([0.0, 0.0])


@pytest.mark.parametrize("memory", MODES)
def test_what_is_no_rate_and_no_output_is_refused(memory):
    h = torch.ones(3, requires_grad=True)
    with pytest.raises(SampleError, match="step 0 returned a value of type tuple"):
        Midpoint(lambda u, h: (h, h), 3, 0.1, memory=memory)(h)
    with pytest.raises(SampleError, match=r"step 0 returned a tensor of torch.complex64"):
        Midpoint(lambda u, h: 1j * h, 3, 0.1, memory=memory)(h)
    with pytest.raises(SampleError, match="readout of step 0 returned a value of type tuple"):
        MidpointRNN(growing, 0.1, lambda u, h: (h, h), memory=memory)(torch.ones(2, 3), h)


def test_a_second_derivative_is_refused():
    h = torch.ones(3, requires_grad=True)
    with pytest.raises(ConfigError, match="create_graph=True"):
        torch.autograd.grad(Midpoint(lambda u, h: torch.sin(h), 5, 0.1)(h).sum(), h, create_graph=True)
