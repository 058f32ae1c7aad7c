"""The rules that credit is compared with: exact where they say so, and wrong only as they say."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from benchmarks.credit_tasks import online, rules
from benchmarks.credit_tasks.looped import Looped, eagerly
from benchmarks.credit_tasks.nets import DenseTanh, Restarting
from benchmarks.credit_tasks.windowed import NO_RULE, Windowed, windows
from hamlearn.cells.columnar import slots

LANES, INPUTS, UNITS, STEPS = 3, 2, 4, 12
COLUMNS = {
    "gru": lambda: hl.cells.ColumnarGRU(INPUTS, UNITS, t_max=5),
    "rtu": lambda: hl.cells.RTU(INPUTS, UNITS),
    "lru": lambda: hl.cells.LRU(INPUTS, UNITS),
}


def stream(restarting):
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(STEPS, LANES, INPUTS, generator=generator).double()
    flags = (torch.rand(STEPS, LANES, 1, generator=generator) < 0.2).double()
    target = torch.randn(STEPS, LANES, 2 * UNITS, generator=generator).double()
    return (torch.cat([u, flags], -1) if restarting else u), target


def unrolled(cell, u, target):
    """Gradient of the summed loss by autograd through all steps."""
    h, total = cell.initial_state(u[0]), 0.0
    for row, goal in zip(u, target, strict=True):
        h = cell(row, h)
        total = total + error(slots(h), goal)
    names, weights = zip(*cell.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, weights), strict=True))


def error(h, goal):
    seen = torch.cat(h, -1)
    return ((seen - goal[..., : seen.shape[-1]]) ** 2).sum()


def carried_forward(cell, rule, u, target, seed=0):
    """The gradients that a rule tells, step by step, summed."""
    generator = torch.Generator().manual_seed(seed)
    h, carried = slots(cell.initial_state(u[0])), rule.start(cell, u[0])
    total = {name: torch.zeros_like(weight) for name, weight in cell.named_parameters()}
    for row, goal in zip(u, target, strict=True):
        noise = torch.randint(2, (u.shape[1], UNITS), generator=generator).double() * 2 - 1
        with torch.no_grad():
            h, carried = rule.step(cell, row, h, carried, noise)
        leaves = [slot.detach().requires_grad_() for slot in h]
        z = torch.autograd.grad(error(leaves, goal), leaves)
        for name, grad in rule.gradient(cell, carried, list(z)).items():
            total[name] += grad
    return total


def dense(restarting, seed=0):
    torch.manual_seed(seed)
    cell = DenseTanh(INPUTS, UNITS).double()
    with torch.no_grad():
        cell.recurrent.mul_(2)
    return Restarting(cell) if restarting else cell


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, grad in one.items():
        assert torch.allclose(grad, other[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("restarting", [False, True])
def test_real_time_recurrent_learning_is_the_gradient_through_time(restarting):
    cell, (u, target) = dense(restarting), stream(restarting)
    assert_same(carried_forward(cell, rules.Exact(), u, target), unrolled(cell, u, target))


@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_own_parts_are_the_gradient_through_time_where_units_are_independent(name, restarting):
    torch.manual_seed(0)
    cell = COLUMNS[name]().double()
    cell = Restarting(cell) if restarting else cell
    u, target = stream(restarting)
    assert_same(carried_forward(cell, rules.Own(), u, target), unrolled(cell, u, target))


def test_snap_1_of_a_dense_net_whose_units_are_cut_apart_is_exact_and_otherwise_is_not():
    cell, (u, target) = dense(False), stream(False)
    exact = carried_forward(cell, rules.Exact(), u, target)
    own = carried_forward(cell, rules.Own(), u, target)
    assert not torch.allclose(own["weight"], exact["weight"], rtol=0.01)
    with torch.no_grad():
        cell.recurrent.copy_(torch.diag(torch.diagonal(cell.recurrent)))
    exact = carried_forward(cell, rules.Exact(), u, target)
    own = carried_forward(cell, rules.Own(), u, target)
    # What a unit owes its weights to the others' past begins at 0 and is a derivative all the same.
    off = 1 - torch.eye(UNITS, dtype=torch.float64)
    assert (exact["recurrent"] * off).abs().max() > 0.1
    assert_same(own, exact)


def test_own_parts_with_nothing_kept_reach_one_step_back():
    cell, (u, target) = dense(False), stream(False)
    total = {name: torch.zeros_like(weight) for name, weight in cell.named_parameters()}
    h = cell.initial_state(u[0])
    for row, goal in zip(u, target, strict=True):
        h = cell(row, h.detach())
        for name, grad in zip(total, torch.autograd.grad(error([h], goal), list(cell.parameters())), strict=True):
            total[name] += grad
    assert_same(carried_forward(cell, rules.Own(keep=0.0), u, target), total)


def test_rflo_fades_each_trace_by_the_leak():
    cell, (u, _) = dense(True), stream(True)
    rule = rules.Own(leak=0.7)
    h, carried = [cell.initial_state(u[0])], rule.start(cell, u[0])
    for row in u:
        trace = carried[2]
        h, carried = rule.step(cell, row, h, carried, None)
        # ∂h⁺/∂b is 1 − h⁺², and a lane that restarts has no past.
        assert torch.allclose(carried[2], 0.7 * (1 - row[:, -1:]) * trace + 1 - h[0] ** 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("restarting", [False, True])
def test_uoro_is_right_on_average(restarting):
    cell, (u, target) = dense(restarting), stream(restarting)
    exact = carried_forward(cell, rules.Exact(), u, target)
    # Each draw has a lane of its own: the same three lanes many times over.
    draws = 20_000
    wide, goals = u.repeat(1, draws, 1), target.repeat(1, draws, 1)
    per_draw = {name: torch.zeros(draws, *weight.shape).double() for name, weight in cell.named_parameters()}
    rule = rules.RankOne()
    h, carried = slots(cell.initial_state(wide[0])), rule.start(cell, wide[0])
    for row, goal in zip(wide, goals, strict=True):
        noise = torch.randint(2, (LANES * draws, UNITS)).double() * 2 - 1
        with torch.no_grad():
            h, carried = rule.step(cell, row, h, carried, noise)
        z = 2 * (h[0] - goal[:, :UNITS])
        along = (z * carried[0]).sum(-1)
        for name, part in zip(per_draw, carried[1:], strict=True):
            owed = along.reshape(-1, *[1] * (part.dim() - 1)) * part
            per_draw[name] += owed.reshape(draws, LANES, *part.shape[1:]).sum(1)
    for name, grads in per_draw.items():
        error_of_mean = grads.std(0) / draws**0.5
        # Five standard errors: about one draw of the seeds in a hundred thousand would leave them.
        assert ((grads.mean(0) - exact[name]).abs() <= 5 * error_of_mean + 1e-9).all(), name
        assert (grads.std(0) > 0).all()


@pytest.mark.parametrize("rule", [rules.Own(), rules.Exact(), rules.RankOne()], ids=["own", "exact", "rank one"])
def test_the_online_loop_follows_pytorchs_adam_and_runs_compiled(rule):
    torch.manual_seed(0)
    cell, readout = dense(True), nn.Linear(UNITS, 1).double()
    u, target = stream(True)
    target = target[..., :1]
    has = torch.arange(STEPS) % 3 != 1
    noise = torch.randint(2, (STEPS, LANES, UNITS)).double() * 2 - 1
    learner = online.Online(cell, readout, rule, nn.functional.mse_loss, lr=0.01)
    carry = [tensor.clone() for tensor in learner.start(u[0])]
    samples = [u, target, has, noise]
    after, (y,) = eagerly(learner.step, carry, samples)

    weights = [*cell.parameters(), *readout.parameters()]
    adam = torch.optim.Adam(weights, lr=0.01)
    h, carried = slots(cell.initial_state(u[0])), rule.start(cell, u[0])
    for k in range(STEPS):
        with torch.no_grad():
            h, carried = rule.step(cell, u[k], h, carried, noise[k])
        leaf = h[0].detach().requires_grad_()
        loss = nn.functional.mse_loss(readout(leaf), target[k])
        assert torch.allclose(readout(leaf), y[k], rtol=0, atol=1e-12)
        z, *own = torch.autograd.grad(loss, [leaf, *readout.parameters()])
        if has[k]:
            for weight, grad in zip(weights, [*rule.gradient(cell, carried, [z]).values(), *own], strict=True):
                weight.grad = grad
            adam.step()
    for weight, ours in zip(weights, after, strict=False):
        assert torch.allclose(weight, ours, rtol=0, atol=1e-12)

    loop = Looped(learner.step, carry, [row[0] for row in samples])
    (compiled,) = loop(samples)
    assert torch.allclose(compiled, y, rtol=0, atol=1e-12)
    for one, other in zip(loop.carry, after, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_own_parts_are_what_a_learner_with_sensitivity_gathers(name, restarting):
    torch.manual_seed(0)
    cell = COLUMNS[name]().double()
    cell = Restarting(cell) if restarting else cell
    u, target = stream(restarting)
    expected = carried_forward(cell, rules.Own(), u, target)
    network = hl.Network.recurrent(cell)
    size = network.output_net(None, network.initial_state(u[0])).shape[-1]
    loss = nn.MSELoss(reduction="sum")
    learner = hl.Learner(network, loss, hl.Hyper(eta=0.0, beta=0.0), credit=hl.Sensitivity())
    for row, goal in zip(u, target[..., :size], strict=True):
        learner.step(hl.Sample(row, goal))
    assert_same({f"state.{key}": grad for key, grad in expected.items()}, dict(learner.state.omega))


def test_snap_1_is_what_a_learner_with_sensitivity_that_is_not_strict_gathers():
    cell, (u, target) = dense(False), stream(False)
    expected = carried_forward(cell, rules.Own(), u, target)
    loss = nn.MSELoss(reduction="sum")
    credit = hl.Sensitivity(strict=False)
    learner = hl.Learner(hl.Network.recurrent(cell), loss, hl.Hyper(eta=0.0, beta=0.0), credit=credit)
    for row, goal in zip(u, target[..., :UNITS], strict=True):
        learner.step(hl.Sample(row, goal))
    assert_same({f"state.{key}": grad for key, grad in expected.items()}, dict(learner.state.omega))


def test_windows_follow_autograd_and_pytorchs_adam_and_run_compiled():
    torch.manual_seed(0)
    cell, readout = dense(True), nn.Linear(UNITS, 1).double()
    u, target = stream(True)
    target, has = target[..., :1], torch.arange(STEPS) % 5 == 4
    # The second of four windows has no target, and makes no update.
    has[3:6] = False
    learner = Windowed(cell, readout, NO_RULE, nn.functional.mse_loss, lr=0.01)
    carry = [tensor.clone() for tensor in learner.start(u[0])]
    samples = [windows(rows, 3) for rows in (u, target, has, u[..., :1])]
    loop = Looped(learner.step, carry, [row[0] for row in samples])
    (y,) = loop(samples)

    weights = [*cell.parameters(), *readout.parameters()]
    adam = torch.optim.Adam(weights, lr=0.01)
    h = cell.initial_state(u[0])
    for begin in range(0, STEPS, 3):
        h, losses = h.detach(), []
        for k in range(begin, begin + 3):
            h = cell(u[k], h)
            assert torch.allclose(readout(h), y.flatten(0, 1)[k], rtol=0, atol=1e-12)
            losses += [nn.functional.mse_loss(readout(h), target[k])] if has[k] else []
        if losses:
            adam.zero_grad()
            sum(losses).backward()
            adam.step()
    for weight, ours in zip(weights, loop.carry, strict=False):
        assert torch.allclose(weight, ours, rtol=0, atol=1e-12)
