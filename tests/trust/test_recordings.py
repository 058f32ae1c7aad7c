"""Compiled steps of modules that are used twice, of indices out of range, of members that differ."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.trust.learners import LITERAL, SGD, learner_of, ran, samples, weights


def tied():
    shared = nn.Linear(2, 2, dtype=torch.float64)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(2, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    "choices",
    [
        {"order": "sequential"},
        {"order": "parallel", "credit": hl.Forward()},
        {"order": "parallel", "credit": hl.Forward(), "integrator": hl.Heun()},
        {"order": "parallel", "credit": hl.Forward(), "integrator": hl.RK4()},
    ],
)
def test_a_module_used_twice_keeps_its_own_parameters_and_both_engines_agree(choices):
    results = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        module = tied()
        own = list(module.parameters())
        learner = learner_of(module, hyper=LITERAL, **choices)
        ran(learner, samples(7), engine)
        assert all(a is b for a, b in zip(own, module.parameters(), strict=True))
        assert all(type(weight) is nn.Parameter for weight in module.parameters())
        results.append(weights(learner))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


class OneHot(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, u):
        return self.linear(nn.functional.one_hot(u, 4).float())


class Scattered(OneHot):
    def forward(self, u):
        return self.linear(torch.zeros(len(u), 4).scatter(1, u.unsqueeze(1), 1.0))


class Table(OneHot):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.register_buffer("table", torch.arange(4))

    def forward(self, u):
        return self.linear(self.table[u].float().unsqueeze(-1))


@pytest.mark.parametrize("on_nonfinite", ["raise", "ignore"])
@pytest.mark.parametrize("module", [OneHot, Scattered, Table, lambda: nn.Embedding(4, 1)])
def test_an_index_out_of_range_is_refused_where_the_eager_engine_refuses_it(module, on_nonfinite):
    stream = [hl.Sample(torch.tensor([k % 4]), torch.ones(1, 1)) for k in range(9)]
    stream.insert(6, hl.Sample(torch.tensor([4]), torch.ones(1, 1)))
    done, finals = [], []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        learner = learner_of(module(), on_nonfinite=on_nonfinite)
        with pytest.raises(hl.errors.SampleError, match=r"out of|smaller than"):
            ran(learner, stream, engine)
        done.append(learner.position)
        finals.append(weights(learner))
    assert done == [6, 6]
    torch.testing.assert_close(*finals, rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_sample_of_another_dtype_is_refused_where_the_eager_engine_refuses_it(first):
    stream = samples(6)
    stream.insert(first, hl.Sample(stream[0].u.float(), stream[0].target))
    learner = learner_of(nn.Linear(2, 1).double())
    with pytest.raises(hl.errors.SampleError, match=r"float32\[1, 2\]"):
        ran(learner, stream)
    assert learner.position == first


def test_a_population_whose_first_sample_is_refused_says_why():
    population = hl.Population(lambda hyper: learner_of(nn.Linear(2, 1), hyper=hyper), hyper=[SGD], seeds=[0, 1])
    with pytest.raises(hl.errors.SampleError, match="tau=-1"):
        list(population.run([hl.Sample(torch.ones(1, 2), torch.ones(1, 1), tau=-1.0)]))
    assert len(list(population.run([hl.Sample(torch.ones(1, 2), torch.ones(1, 1))] * 3))) == 3


def steps_after_a_rate_was_written_to(make, rate, engine):
    """Weights after a run, a rate set to 0 in place, and a run that must not move them; and those before it."""
    torch.manual_seed(0)
    learner = learner_of(nn.Linear(2, 1).double(), hyper=make(rate))
    ran(learner, samples(6), engine)
    rate.zero_()
    before = weights(learner)
    ran(learner, samples(6), engine)
    return before, weights(learner)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize(
    "make", [lambda rate: hl.Hyper(beta={"*": rate}), lambda rate: hl.Hyper(phi=rate)], ids=["beta", "phi"]
)
def test_a_rate_that_is_a_tensor_is_read_anew_by_both_engines(make, engine):
    before, after = steps_after_a_rate_was_written_to(make, torch.tensor(0.1), engine)
    assert torch.equal(before, after)
