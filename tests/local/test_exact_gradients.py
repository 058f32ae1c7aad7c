"""Where local learning must give the gradient of BackPropagation exactly."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import Graph, LocalLearner
from tests.local.cases import chain, layer, skips
from tests.problems import random_samples

STILL = hl.Hyper(tau=1.0, eta=0.0, beta=0.0, phi=1.0)
mse = nn.functional.mse_loss


def gradients(module, forward, stream):
    loss = sum(mse(forward(sample.u), sample.target) for sample in stream)
    return dict(
        zip(dict(module.named_parameters()), torch.autograd.grad(loss, list(module.parameters())), strict=True)
    )


def skip_pass(graph):
    node = graph.nodes

    def forward(u):
        a = node["a"](u)
        return node["out"](node["add"](node["c"](node["b"](a)), a), u)

    return forward


def assert_equal(omega, expected):
    assert omega.keys() == expected.keys()
    for name, want in expected.items():
        assert (want != 0).any()
        assert (omega[name] - want).abs().max() <= 1e-12 * (1 + want.abs().max())


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 12])
def test_a_held_chain_adds_the_gradient_with_every_tick_after_twice_its_length(length, stacked):
    module = chain(3, *[4] * (length - 1), 2)
    learner = LocalLearner(module, mse, STILL, stacked=stacked)
    sample = random_samples(1)[0]
    for _ in range(2 * length):
        learner.step(sample)
    expected = gradients(module, module, [sample])
    for _ in range(3):
        before = {name: omega.clone() for name, omega in learner.state.omega.items()}
        learner.step(sample)
        assert_equal({n: omega - before[n] for n, omega in learner.state.omega.items()}, expected)


def test_a_held_graph_with_skips_adds_the_gradient_with_every_tick():
    module = skips()
    learner = LocalLearner(module, mse, STILL)
    sample = random_samples(1)[0]
    for _ in range(10):
        learner.step(sample)
    before = {name: omega.clone() for name, omega in learner.state.omega.items()}
    learner.step(sample)
    expected = gradients(module, skip_pass(module), [sample])
    assert_equal({n: omega - before[n] for n, omega in learner.state.omega.items()}, expected)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 12])
def test_an_aligned_chain_sums_the_gradients_of_all_samples(length, stacked, order):
    module = chain(3, *[4] * (length - 1), 2)
    learner = LocalLearner(module, mse, STILL, align=True, stacked=stacked, order=order)
    assert bool(learner.stacks) == (stacked and length > 3)
    stream = random_samples(20)
    reports = list(learner.run(stream))
    assert [report.sample for report in reports] == stream
    for report in reports:
        assert (report.loss - mse(module(report.sample.u), report.sample.target)).abs() < 1e-12
    assert_equal(learner.state.omega, gradients(module, module, stream))


@pytest.mark.parametrize("groups", [1, 2, 3, 5, [1], [3], [1, 2, 6], [2, 3, 4]])
def test_groups_of_any_size_sum_the_gradients_of_all_samples(groups):
    module = nn.Sequential(
        *chain(3, 4, 4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Linear(4, 2)
    )
    learner = LocalLearner(module, mse, STILL, groups=groups, align=True)
    assert len(learner.nodes) == (groups if isinstance(groups, int) else len(groups) + 1)
    stream = random_samples(15)
    assert len(list(learner.run(stream))) == 15
    assert_equal(learner.state.omega, gradients(module, module, stream))


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("groups", [None, 1, [4]])
def test_an_aligned_graph_with_skips_sums_the_gradients_of_all_samples(groups, order):
    module = skips()
    learner = LocalLearner(module, mse, STILL, groups=groups, align=True, order=order)
    stream = random_samples(15)
    reports = list(learner.run(stream))
    assert [report.sample for report in reports] == stream
    assert_equal(learner.state.omega, gradients(module, skip_pass(module), stream))


def test_outputs_at_several_depths_and_batches_of_several_sizes_sum_their_gradients():
    nodes = {"a": layer(3, 4), "b": layer(4, 4), "c": layer(4, 2), "dead end": layer(4, 3)}
    edges = [("u", "a"), ("a", "b"), ("b", "c"), ("a", "dead end")]
    module = Graph(nodes, edges, outputs=["a", "c"])
    learner = LocalLearner(module, {"a": nn.functional.l1_loss, "c": mse}, STILL, align=True, stacked=False)
    stream, total = [], 0.0
    for k in range(9):
        u, target = torch.randn(1 + k % 3, 3), {"a": torch.randn(1 + k % 3, 4), "c": torch.randn(1 + k % 3, 2)}
        if k % 3 == 1:
            del target["a"]
        stream.append(hl.Sample(u, target))
    reports = list(learner.run(stream))
    for sample in stream:
        a = module.nodes["a"](sample.u)
        total = total + mse(module.nodes["c"](module.nodes["b"](a)), sample.target["c"])
        if "a" in sample.target:
            total = total + nn.functional.l1_loss(a, sample.target["a"])
    assert [report.sample for report in reports] == stream
    assert abs(sum(report.loss for report in reports) - total) < 1e-12
    names = [n for n, _ in module.named_parameters() if "dead end" not in n]
    weights = dict(module.named_parameters())
    expected = dict(zip(names, torch.autograd.grad(total, [weights[n] for n in names]), strict=True))
    assert_equal({n: learner.state.omega[n] for n in names}, expected)
    assert all(not o.any() for n, o in learner.state.omega.items() if "dead end" in n)


def test_the_loss_of_a_sample_is_weighed_by_its_own_time_step():
    module = chain(3, 4, 2)
    learner = LocalLearner(
        module, mse, hl.Hyper(tau=9.0, eta=0.0, beta=0.0, phi=0.5, clock="continuous"), align=True
    )
    stream = [hl.Sample(s.u, s.target, tau=0.1 * (k + 1)) for k, s in enumerate(random_samples(6))]
    list(learner.run(stream))
    loss = sum(0.5 * s.tau * mse(module(s.u), s.target) for s in stream)
    grads = torch.autograd.grad(loss, list(module.parameters()))
    assert_equal(learner.state.omega, dict(zip(learner.state.omega, grads, strict=True)))


def test_the_second_evaluation_repeats_the_draws_of_the_first_and_leaves_statistics_alone():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    twin = copy.deepcopy(module)
    learner = LocalLearner(module, mse, STILL, align=True)
    stream = random_samples(1, batch=(6,))
    torch.manual_seed(5)
    reports = list(learner.run(stream))
    torch.manual_seed(5)
    loss = mse(twin(stream[0].u), stream[0].target)
    assert abs(reports[0].loss - loss) < 1e-12
    grads = torch.autograd.grad(loss, list(twin.parameters()))
    for got, want in zip(learner.state.omega.values(), grads, strict=True):
        assert (got - want).abs().max() < 1e-12
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), twin.buffers(), strict=True))


def test_delays_are_twice_the_distance_to_the_loss():
    learner = LocalLearner(chain(3, 4, 4, 4, 2), mse, STILL, align=True)
    assert learner.delays == {"0": 8, "1": 6, "2": 4, "3": 2}
    learner = LocalLearner(chain(3, 4, 4, 4, 2), mse, STILL, align=True, order="sequential")
    assert learner.delays == {"0": 6, "1": 4, "2": 2, "3": 0}


def test_costates_lose_a_part_of_themselves_with_every_edge():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    learner = LocalLearner(module, mse, hl.Hyper(eta=0.0, beta=0.0, eta_z=0.25), align=True)
    stream = random_samples(5)
    list(learner.run(stream))
    expected = gradients(module, module, stream)
    kept = {"0": 0.75**2, "1": 0.75, "2": 1.0}
    assert_equal(learner.state.omega, {n: kept[n[0]] * g for n, g in expected.items()})
