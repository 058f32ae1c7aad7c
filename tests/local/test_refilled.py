"""Sources that use one piece of memory for every sample: nothing that a learner keeps may lie there."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.local import Graph, LocalLearner
from tests.local.cases import Add, chain, make
from tests.problems import random_samples

mse = nn.functional.mse_loss


def refilled(given):
    """The same values as `given`, all in the tensors of the first sample."""
    memory = None
    for sample in given:
        if memory is None:
            memory = hl.Sample(sample.u.clone(), sample.target.clone())
        memory.u.copy_(sample.u)
        memory.target.copy_(sample.target)
        yield memory
        memory.u.fill_(torch.nan)
        memory.target.fill_(torch.nan)


MODULES = {
    "stacked": lambda: chain(3, 4, 4, 4, 2),
    "input is passed on": lambda: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(3, 2)),
    "dropout of nothing": lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(3, 2)),
    "skips": lambda: make("skips"),
    "late input": lambda: Graph(
        {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "add": Add(), "out": nn.Linear(3, 2)},
        [("u", "a"), ("a", "b"), ("b", "add"), ("u", "add"), ("add", "out")],
    ),
}


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"hold": 2, "align": True}, {"delay_free": True}])
@pytest.mark.parametrize("case", MODULES)
def test_a_source_that_refills_its_memory_teaches_the_same(case, setting):
    found = []
    given = random_samples(16, batch=(3,))
    for source in (given, refilled(given)):
        torch.manual_seed(2)
        learner = LocalLearner(MODULES[case](), mse, hl.Hyper(eta=0.3, beta=0.05), **setting)
        reports = list(learner.run(source))
        found.append([*learner.module.parameters(), *learner.state.omega.values(), *(r.y for r in reports)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not any(x.isnan().any() for x in found[0])


def test_a_checkpoint_of_samples_in_flight_holds_what_they_were(tmp_path):
    given, found = random_samples(5, batch=(3,)), []
    for source in (iter(given), refilled(given)):
        torch.manual_seed(2)
        learner = LocalLearner(chain(3, 4, 4, 2), mse, hl.Hyper(beta=0.05), align=True)
        for sample in source:
            learner.step(sample)
        learner.save(tmp_path / "a.hl")
        again = LocalLearner(chain(3, 4, 4, 2), mse, hl.Hyper(beta=0.05), align=True)
        again.load(tmp_path / "a.hl")
        again.flush()
        found.append(list(again.module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"delay_free": True}])
def test_a_node_that_works_in_place_leaves_what_others_read(setting):
    class Scale(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.in_place = in_place

        def forward(self, x):
            return x.mul_(2) if self.in_place else 2 * x

    found = []
    for in_place in (True, False):
        torch.manual_seed(2)
        nodes = {"a": nn.Linear(3, 3), "b": Scale(in_place), "add": Add(), "out": nn.Linear(3, 2)}
        edges = [("u", "a"), ("a", "b"), ("a", "add"), ("b", "add"), ("add", "out")]
        learner = LocalLearner(Graph(nodes, edges), mse, hl.Hyper(eta=0.3, beta=0.05), **setting)
        list(learner.run(random_samples(12, batch=(3,))))
        found.append(list(learner.module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
