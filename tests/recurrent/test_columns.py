"""Cells of independent units: their derivatives in closed form, their starts, and every credit and engine."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.cells.columnar import slots
from tests.loops.running import quickly_compiled
from tests.problems import random_samples

MSE = nn.functional.mse_loss
CELLS = {
    "gru": lambda inputs, units: hl.cells.ColumnarGRU(inputs, units, t_max=20),
    "rtu": hl.cells.RTU,
    "lru": hl.cells.LRU,
    "diagonal": hl.cells.Diagonal,
    "rotating": lambda inputs, units: hl.cells.Diagonal(inputs, units, rotating=True),
}
RATES = ("diagonal", "rotating")
SHAPES = [((), 1, 1), ((4,), 3, 5), ((2, 3), 1, 4)]
"""Batch, inputs and units."""
cells = pytest.mark.parametrize("name", CELLS)


def made(name, inputs, units, batch, seed=0):
    """A cell with weights drawn anew, and an input and a state for it."""
    torch.manual_seed(seed)
    cell = CELLS[name](inputs, units).double()
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    u = torch.randn(*batch, inputs).double()
    h = [torch.randn_like(slot) for slot in slots(cell.initial_state(u))]
    return cell, u, h


def called(cell, u, h):
    return slots(cell(u, h[0] if len(h) == 1 else tuple(h)))


def network_of(name, units=4, outputs=2):
    cell = CELLS[name](3, units).double()
    transition = "rate" if name in RATES else "next"
    readout = nn.Linear(getattr(cell, "hidden_size", getattr(cell, "size", None)), outputs).double()
    return hl.Network.recurrent(cell, readout, transition=transition)


def hyper_of(name):
    return hl.Hyper.from_sgd(lr=0.02, momentum=0.5, tau=0.1 if name in RATES else 1.0)


def tokens(count):
    return random_samples(count, batch=(3,), dtype=torch.float64, missing=7, length=20)


@cells
@pytest.mark.parametrize(("batch", "inputs", "units"), SHAPES)
def test_the_closed_form_agrees_with_autograd(name, batch, inputs, units):
    cell, u, h = made(name, inputs, units, batch)
    value, J, F = cell.local(u, h)
    expected = called(cell, u, h)
    assert all(torch.equal(a, b) for a, b in zip(value, expected, strict=True))
    weights = dict(cell.named_parameters())
    assert F.keys() == weights.keys()
    assert all(weight.shape[0] == units for weight in weights.values())
    for i in range(len(h)):
        for j in range(len(h)):
            full = torch.autograd.functional.jacobian(
                lambda x, i=i, j=j: called(cell, u, [*h[:j], x, *h[j + 1 :]])[i], h[j]
            ).reshape(h[j].numel(), h[j].numel())
            # All of the Jacobian is accounted for: units do not see each other.
            assert torch.allclose(torch.diag(J[i][j].reshape(-1)), full, rtol=0, atol=1e-12)
        for parameter, weight in weights.items():
            by_theta = torch.autograd.functional.jacobian(
                lambda x, i=i, parameter=parameter: slots(
                    torch.func.functional_call(
                        cell, {parameter: x}, (u, h[0] if len(h) == 1 else tuple(h)), strict=False
                    )
                )[i],
                weight,
            )
            assert F[parameter][i].shape == (*batch, *weight.shape)
            own = torch.zeros_like(by_theta)
            for unit in range(units):
                at = by_theta[..., unit, unit, :] if weight.dim() == 2 else by_theta[..., unit, unit]
                ours = F[parameter][i][..., unit, :] if weight.dim() == 2 else F[parameter][i][..., unit]
                assert torch.allclose(ours, at, rtol=0, atol=1e-12)
                (own[..., unit, unit, :] if weight.dim() == 2 else own[..., unit, unit]).copy_(ours)
            assert torch.allclose(own, by_theta, rtol=0, atol=1e-12)


@cells
def test_a_unit_cut_out_of_its_cell_goes_the_same_way_alone(name):
    whole, u, h = made(name, 3, 5, (2,))
    alone, _, _ = made(name, 3, 1, (2,))
    with torch.no_grad():
        for one, all_units in zip(alone.parameters(), whole.parameters(), strict=True):
            one.copy_(all_units[2:3])
    single = [slot[:, 2:3].clone() for slot in h]
    for _ in range(20):
        u = torch.randn_like(u)
        h, single = called(whole, u, h), called(alone, u, single)
    for slot, one in zip(h, single, strict=True):
        assert torch.allclose(slot[:, 2:3], one, rtol=0, atol=1e-12)


@cells
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_the_state_is_contiguous_slots_of_the_batch_and_type(name, dtype, batch):
    cell = CELLS[name](3, 4).to(dtype)
    u = torch.randn(*batch, 3, dtype=dtype)
    h = slots(cell.initial_state(u))
    assert isinstance(cell, hl.cells.Columnar)
    assert len(h) == (1 if name in ("gru", "diagonal") else 2)
    after = called(cell, u, h)
    for before, slot in zip(h, after, strict=True):
        assert not before.any()
        assert slot.shape == before.shape == (*batch, cell.units)
        assert slot.dtype == before.dtype == dtype
        assert slot.is_contiguous()
    # No two slots in one memory: each is to be moved for itself.
    assert len({slot.data_ptr() for slot in h}) == len(h)


@cells
@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Echo(every=5)], ids=["cleared", "echo"])
def test_both_engines_learn_and_agree(name, credit):
    torch.manual_seed(0)
    network, hyper, stream = network_of(name), hyper_of(name), tokens(60)
    start = copy.deepcopy(network.state_dict())
    learners = [hl.Learner(copy.deepcopy(network), MSE, hyper, credit=credit) for _ in range(2)]
    eager = [report.y for report in learners[0].run(stream)]
    with quickly_compiled(), warnings.catch_warnings():
        # To go on eagerly would be told by a warning.
        warnings.simplefilter("error")
        compiled = [report.y for report in learners[1].run(stream, engine="compiled", chunk=16)]
    for a, b in zip(eager, compiled, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    other = learners[1].network.state_dict()
    for key, weight in learners[0].network.state_dict().items():
        assert torch.allclose(weight, other[key], rtol=0, atol=1e-12)
        assert not torch.equal(weight, start[key]), key


@cells
def test_forward_credit_moves_every_weight(name):
    torch.manual_seed(0)
    network = network_of(name)
    start = copy.deepcopy(network.state_dict())
    list(hl.Learner(network, MSE, hyper_of(name), credit=hl.Forward()).run(tokens(20)))
    for key, weight in network.state_dict().items():
        assert weight.isfinite().all()
        assert not torch.equal(weight, start[key]), key


def test_update_gates_begin_with_time_constants_from_one_to_t_max():
    torch.manual_seed(0)
    cell = hl.cells.ColumnarGRU(2, 4000, t_max=50)
    T = torch.exp(-cell.bias_update)
    assert 1 - 1e-4 <= T.min() < 1.2
    assert 49.5 < T.max() <= 50 + 1e-3
    assert abs(T.mean() - 25.5) < 1
    for gate in ("reset", "candidate"):
        assert 0.99 < getattr(cell, f"bias_{gate}").abs().max() <= 1
    for gate in ("update", "reset", "candidate"):
        assert 0.99 < getattr(cell, f"recurrent_{gate}").abs().max() <= 1
        assert 0.99 * 2**-0.5 < getattr(cell, f"weight_{gate}").abs().max() <= 2**-0.5


@pytest.mark.parametrize("kind", [hl.cells.RTU, hl.cells.LRU])
def test_turning_units_begin_within_their_ring_and_up_to_their_phase(kind):
    torch.manual_seed(0)
    cell = kind(2, 4000)
    r = torch.exp(-torch.exp(cell.nu))
    assert 0.9 - 1e-6 <= r.min() < 0.9001
    assert 0.9989 < r.max() <= 0.999 + 1e-6
    assert 0 <= cell.theta.min() < 0.01
    assert math.pi - 0.01 < cell.theta.max() <= math.pi
    narrow = kind(2, 50, radius=(0.5, 0.5), phase=0.1)
    assert torch.allclose(torch.exp(-torch.exp(narrow.nu)), torch.tensor(0.5))
    assert narrow.theta.max() <= 0.1


def test_gamma_keeps_the_state_of_a_linear_unit_as_large_as_white_input():
    torch.manual_seed(0)
    cell = hl.cells.LRU(1, 200, radius=(0.9, 0.9)).double()
    with torch.no_grad():
        cell.weight_1.fill_(1.0)
        cell.weight_2.fill_(0.0)
        h, power = cell.initial_state(torch.zeros(64, 1)), 0.0
        for k in range(1200):
            h = cell(torch.randn(64, 1).double(), h)
            power += (h[0] ** 2 + h[1] ** 2).mean() / 1000 if k >= 200 else 0.0
    assert abs(power - 1) < 0.02


def test_a_stack_takes_cells_of_independent_units_and_what_they_show():
    torch.manual_seed(0)
    stack = hl.cells.Stack(hl.cells.RTU(3, 4), nn.LSTMCell(8, 6), hl.cells.ColumnarGRU(6, 5)).double()
    u = torch.randn(2, 3).double()
    h = stack.initial_state(u)
    rtu, lstm, gru = stack.cells
    below = rtu(u, h[0])
    between = lstm(torch.cat(below, -1), h[1])
    top = gru(between[0], h[2])
    (one, two), (c, d), three = stack(u, h)
    for a, b in ((one, below[0]), (two, below[1]), (c, between[0]), (d, between[1]), (three, top)):
        assert torch.equal(a, b)
    assert torch.equal(stack.visible(stack(u, h)), top)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hl.cells.ColumnarGRU(1, 2, t_max=0.5), r"t_max=0\.5 must be a number of steps, at least 1"),
        (lambda: hl.cells.ColumnarGRU(1, 2, t_max=math.nan), "t_max=nan"),
        (
            lambda: hl.cells.RTU(1, 2, radius=(0.9, 1.0)),
            r"radius=\(0\.9, 1\.0\) must be two numbers",
        ),
        (lambda: hl.cells.Stack(hl.cells.RTU(1, 2), hl.cells.ColumnarGRU(2, 2)), "hidden size 4 cannot feed.*2"),
        (lambda: hl.cells.Stack(hl.cells.Diagonal(1, 2)), "that return the next state"),
        (lambda: hl.cells.Stack(nn.GRU(1, 2)), "Stack takes nn.RNNCell"),
    ],
)
def test_settings_that_make_no_cell_are_named(make, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        make()
