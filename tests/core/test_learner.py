"""What a learner promises beyond the equations: boundaries, modules with a life of their own, purity."""

import copy
import gc

import psutil
import pytest
import torch
from torch import nn

import hamlearn as hl
from benchmarks import walk
from tests.problems import NETWORKS, random_problem

MSE = nn.functional.mse_loss


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_predict_tells_what_the_next_step_reports(kind, order):
    problem = random_problem(kind, 2, 25)
    learner = problem.learner(order=order)
    for sample in problem.samples:
        expected = learner.predict(sample.u, tau=sample.tau)
        assert (learner.step(sample).y - expected).abs().max() < 1e-12


def test_predict_uses_evaluation_mode_and_restores_the_modes_of_all_modules():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    module[3].eval()
    learner = hl.Learner(hl.Network.feedforward(module), MSE, hl.Hyper())
    modes = [m.training for m in learner.network.modules()]
    u = torch.randn(8, 3)
    assert torch.equal(learner.predict(u), learner.predict(u))
    assert module[1].num_batches_tracked.item() == 0
    assert [m.training for m in learner.network.modules()] == modes


@pytest.mark.parametrize(
    ("role", "order"), [("output", "parallel"), ("output", "sequential"), ("state", "sequential")]
)
def test_batch_norm_statistics_and_dropout_masks_follow_an_ordinary_training_loop(role, order):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 2))
    twin = copy.deepcopy(module)
    learner = hl.Learner(
        hl.Network.feedforward(module, role=role), MSE, hl.Hyper(beta=0.0), order, hl.Forward(), reset_h="sample"
    )
    data = [(torch.randn(6, 3), torch.randn(6, 2)) for _ in range(10)]
    torch.manual_seed(1)
    for u, target in data:
        learner.step(hl.Sample(u, target))
    torch.manual_seed(1)
    for u, _ in data:
        twin(u)
    for a, b in zip(module.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)


def test_reset_returns_to_h0_and_keeps_weights_costates_and_time():
    problem = random_problem("gru", 1, 8)
    learner = problem.learner()
    for sample in problem.samples:
        learner.step(sample)
    omega, t = learner.state.omega, learner.state.t
    learner.reset()
    assert learner.state.h is None
    assert learner.state.t == t
    assert all(torch.equal(omega[n], o) for n, o in learner.state.omega.items())
    fresh = hl.Learner(
        learner.network,
        problem.loss,
        problem.hyper,
        learner.order,
        learner.credit,
        learner.reset_h,
        learner.integrator,
    )
    assert torch.equal(learner.predict(problem.samples[0].u), fresh.predict(problem.samples[0].u))


def test_weights_whose_beta_is_zero_stay_and_frozen_weights_have_no_costate():
    network = hl.Network.feedforward(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)))
    network.output[1].requires_grad_(False)
    hyper = hl.Hyper(beta={"output.0.weight": 0.0, "*": 0.1})
    learner = hl.Learner(network, MSE, hyper, order="sequential")
    start = copy.deepcopy(network)
    for _ in range(3):
        learner.step(hl.Sample(torch.randn(4, 2), torch.randn(4, 1)))
    moved = {
        name: not torch.equal(p, q)
        for (name, p), q in zip(network.named_parameters(), start.parameters(), strict=True)
    }
    assert moved == {
        "output.0.weight": False,
        "output.0.bias": True,
        "output.1.weight": False,
        "output.1.bias": False,
        "output.2.weight": True,
        "output.2.bias": True,
    }
    assert not any(name.startswith("output.1") for name in learner.state.omega)
    assert learner.state.omega["output.0.weight"].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_any_float_dtype_learns_and_keeps_its_dtype(order, dtype):
    problem = random_problem("next", 1, 10, dtype)
    learner = problem.learner(order=order)
    for sample in problem.samples:
        learner.step(sample)
    tensors = [learner.state.h, learner.state.z, *learner.state.omega.values(), *learner.network.parameters()]
    assert {tensor.dtype for tensor in tensors} == {dtype}


def test_run_is_lazy_counts_steps_and_stops_where_it_is_told():
    learner = hl.Learner(hl.Network.feedforward(nn.Linear(1, 1)), MSE, hl.Hyper())
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield hl.Sample(torch.ones(1, 1), torch.ones(1, 1))

    reports = learner.run(endless(), max_steps=7)
    assert not taken
    assert [report.t for report in reports] == [float(k) for k in range(7)]
    assert len(taken) == 7
    assert learner.position == 7


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_memory_is_bounded_on_an_endless_stream(order):
    network = hl.Network.recurrent(nn.RNNCell(8, 16), nn.Linear(16, 2))
    learner = hl.Learner(network, MSE, hl.Hyper(beta=1e-3, eta=0.1), order=order, credit=hl.Forward())
    sample = hl.Sample(torch.randn(1, 8), torch.randn(1, 2))

    def resident(steps):
        for _ in range(steps):
            learner.step(sample)
        gc.collect()
        return psutil.Process().memory_info().rss

    early = resident(1000)
    tensors = sum(type(item) is torch.Tensor for item in gc.get_objects())
    assert resident(4000) <= 1.01 * early
    assert sum(type(item) is torch.Tensor for item in gc.get_objects()) == tensors


def test_a_learner_prints_what_it_is():
    network = hl.Network.recurrent(nn.GRUCell(1, 16), readout=nn.Linear(16, 1))
    learner = hl.Learner(network, nn.functional.mse_loss, hl.Hyper(beta=0.1), credit=hl.Forward())
    said = "Learner(state and output net with 929 weights, loss=mse_loss, order='sequential', credit=Forward(), "
    assert repr(learner) == f"{said}{learner.hyper!r})"


def test_an_eager_step_enters_at_most_30_functions_of_the_package_in_10_files():
    calls = walk.eager_step()
    assert len(calls) <= 30
    assert len({file for file, _ in calls}) <= 10


def test_a_warm_block_of_256_steps_makes_at_most_1000_calls_in_the_package():
    assert walk.warm_block().total() <= 1000
