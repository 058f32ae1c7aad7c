"""The stacked engine: chosen where layers are equal, and equal to the plain one."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from hamlearn.local import Graph, LocalLearner, Residual
from tests.local.cases import Two, chain, hyper, layer
from tests.problems import random_samples

mse = nn.functional.mse_loss


def relu_chain(bias=True, inplace=True):
    def block(a, b):
        return nn.Sequential(nn.Linear(a, b, bias=bias), nn.ReLU(inplace=inplace))

    return nn.Sequential(block(3, 4), block(4, 4), block(4, 4), block(4, 4), nn.Linear(4, 2))


def branches():
    nodes = {
        "a": layer(3, 4),
        "b": layer(4, 4),
        "c": layer(4, 4),
        "d": layer(4, 4),
        "e": layer(4, 4),
        "out": Two(4, 4, 2),
    }
    edges = [("u", "a"), ("a", "b"), ("b", "c"), ("a", "d"), ("d", "e"), ("c", "out"), ("e", "out")]
    return Graph(nodes, edges)


def residuals(function=nn.Tanh, bias=True):
    blocks = [Residual(nn.Sequential(nn.Linear(4, 4, bias=bias), function()), 0.5) for _ in range(4)]
    return nn.Sequential(layer(3, 4), *blocks, nn.Linear(4, 2))


CASES = {
    "tanh": lambda: chain(3, 4, 4, 4, 4, 2),
    "first and last": lambda: chain(3, 3, 3, 3),
    "relu": relu_chain,
    "no bias": lambda: relu_chain(bias=False),
    "linear": lambda: nn.Sequential(*(nn.Linear(3, 3) for _ in range(5))),
    "branches": branches,
    "residual": residuals,
    "residual, no bias": lambda: residuals(nn.GELU, bias=False),
}


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"align": True, "hold": 3}, {"order": "sequential"}])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize("case", CASES)
def test_the_stacked_engine_equals_the_plain_one(case, batch, setting):
    module = CASES[case]()
    outputs = module(torch.zeros(3)).shape[-1] if isinstance(module, nn.Sequential) else 2
    names = [name for name, _ in module.named_parameters()]
    small = 0.1 if "residual" in case else 1.0
    given = replace(hyper(names), beta={names[0]: 0.02 * small, "*": 0.05 * small})
    stacked = LocalLearner(copy.deepcopy(module), mse, given, **setting)
    plain = LocalLearner(module, mse, given, stacked=False, **setting)
    assert stacked.stacks
    assert not plain.stacks
    stream = random_samples(25, 3, outputs, batch, missing=4, uneven=True)
    seen = list(zip(stacked.run(stream), plain.run(stream), strict=True))
    assert len(seen) == 25
    for a, b in seen:
        assert a.sample is b.sample
        assert (a.y - b.y).abs().max() < 1e-12
    for (name, a), b in zip(stacked.module.named_parameters(), plain.module.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-12
        assert (stacked.state.omega[name] - plain.state.omega[name]).abs().max() < 1e-12
        assert plain.state.omega[name].any() or "weight" not in name
    for name, h in plain.state.h.items() if plain.state.h else ():
        assert (stacked.state.h[name] - h).abs().max() < 1e-12


@pytest.mark.parametrize("beta", [0.03, lambda t: 0.03 / (1 + t), {"1.*": 0.01, "*": 0.03}, torch.tensor(0.03)])
@pytest.mark.parametrize("setting", [{}, {"align": True}, {"order": "sequential", "align": True}])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_stacked_engine_equals_the_plain_one_without_momentum(batch, setting, beta, tmp_path):
    # Without momentum ω is kept as its two factors.
    module = chain(3, 4, 4, 4, 4, 2)
    given = replace(hl.Hyper.from_sgd(lr=0.03), beta=beta)
    stacked = LocalLearner(copy.deepcopy(module), mse, given, **setting)
    plain = LocalLearner(module, mse, given, stacked=False, **setting)
    assert stacked.stacks
    stream = random_samples(30, batch=(batch,))
    for sample in stream[:20]:
        stacked.step(sample), plain.step(sample)
    stacked.save(tmp_path / "a.hl")
    resumed = LocalLearner(copy.deepcopy(module), mse, given, **setting)
    resumed.load(tmp_path / "a.hl")
    for sample in stream[20:]:
        stacked.step(sample), plain.step(sample), resumed.step(sample)
    for name, weight in module.named_parameters():
        ours, again = (dict(learner.module.named_parameters())[name] for learner in (stacked, resumed))
        assert (ours - weight).abs().max() < 1e-12
        assert (again - weight).abs().max() < 1e-12
        assert (stacked.state.omega[name] - plain.state.omega[name]).abs().max() < 1e-12
        assert plain.state.omega[name].any()


def test_layers_with_betas_of_their_own_are_not_stacked_with_others():
    beta = {"1.*": 0.2, "*": 0.1}
    assert LocalLearner(chain(3, 4, 4, 4, 4, 2), mse, hl.Hyper(eta=0.0, beta=beta)).stacks == [("2", "3")]


def test_layers_that_others_read_or_that_differ_are_not_stacked():
    nodes = {"a": layer(3, 3), "b": layer(3, 3), "c": layer(3, 3), "out": Two(3, 3, 2)}
    edges = [("u", "a"), ("a", "b"), ("b", "c"), ("c", "out"), ("b", "out")]
    assert LocalLearner(Graph(nodes, edges), mse, hl.Hyper()).stacks == [("a", "b")]
    assert not LocalLearner(nn.Sequential(layer(3, 3), nn.Linear(3, 3)), mse, hl.Hyper()).stacks
    frozen = nn.Sequential(layer(3, 3), layer(3, 3))
    frozen[0][0].weight.requires_grad_(False)
    assert not LocalLearner(frozen, mse, hl.Hyper()).stacks
    hooked = nn.Sequential(layer(3, 3), layer(3, 3))
    hooked[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert not LocalLearner(hooked, mse, hl.Hyper()).stacks


def test_residual_and_plain_layers_are_not_stacked_with_each_other():
    pair = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)]
    module = nn.Sequential(pair[0], pair[1], Residual(pair[2]), Residual(pair[3]))
    assert LocalLearner(module, mse, hl.Hyper()).stacks == [("0", "1"), ("2", "3")]


def test_a_residual_branch_begins_small_and_keeps_the_shape():
    branch = nn.Linear(3, 3)
    before = branch.weight.detach().clone()
    residual = Residual(branch, scale=0.25)
    assert torch.equal(branch.weight, 0.25 * before)
    assert torch.equal(copy.deepcopy(residual).branch.weight, branch.weight)
    learner = LocalLearner(nn.Sequential(Residual(nn.Linear(3, 1))), mse, hl.Hyper())
    with pytest.raises(SampleError, match=r"node '0' \(Residual\).*gave \[1, 1\] for \[1, 3\]"):
        learner.step(hl.Sample(torch.ones(1, 3), torch.ones(1, 3)))


def test_groups_of_equal_layers_are_stacked():
    module = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(3, 3), nn.Tanh())))
    assert LocalLearner(module, mse, hl.Hyper(), groups=4).stacks == [("1", "3", "5", "7")]


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of_a_tick(depth, **setting):
    learner = LocalLearner(chain(*[3] * (depth + 1)), mse, hl.Hyper(eta=0.0, beta=0.1), **setting)
    sample = hl.Sample(torch.randn(2, 3), torch.zeros(2, 3))
    for _ in range(2 * depth + 1):
        learner.step(sample)
    with Count() as count:
        learner.step(sample)
    return count.calls


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"order": "sequential"}])
def test_a_tick_costs_the_same_calls_at_any_depth(setting):
    assert calls_of_a_tick(4, **setting) == calls_of_a_tick(32, **setting) < 100
    assert calls_of_a_tick(32, stacked=False, **setting) > 300


def test_weights_that_left_their_stack_are_noticed():
    module = chain(3, 3, 3, 3)
    learner = LocalLearner(module, mse, hl.Hyper(eta=0.0, beta=0.1))
    module.to(torch.float32)
    with pytest.raises(ConfigError, match=r"new storage|when the learner was made"):
        learner.run([hl.Sample(torch.randn(2, 3).float(), torch.zeros(2, 3).float())])


def test_the_module_stays_the_owner_of_stacked_weights():
    module = chain(3, 3, 3, 3)
    learner = LocalLearner(module, mse, hl.Hyper(eta=0.0, beta=0.1), align=True)
    other = chain(3, 3, 3, 3)
    module.load_state_dict(other.state_dict())
    u = torch.randn(2, 3)
    reports = [*learner.run([hl.Sample(u, torch.zeros(2, 3))])]
    assert (reports[0].y - other(u)).abs().max() < 1e-12
    assert (learner.predict(u) - other(u)).abs().max() > 0
