"""Short loss curves, kept in the repository, that a refactoring must reproduce.

Where a change of the mathematics is meant, run `python -m tests.core.test_golden`, with the names of the curves or
without, and look at the difference.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.problems import random_problem

FOLDER = Path(__file__).parent.parent / "golden"
MSE, CROSS = nn.functional.mse_loss, nn.functional.cross_entropy


def of_problem(kind, clock="continuous", engine="eager", **setting):
    problem = random_problem(kind, 5, 60, clock=clock)
    return losses(problem.learner(**setting).run(problem.samples, 60, engine))


def local(**choices):
    """A chain of three layers that classifies, tick by tick."""
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
    module = nn.Sequential(*layers, nn.Linear(4, 3)).double()
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=0.5)
    learner = hl.local.LocalLearner(module, CROSS, hyper, **choices)
    samples = [hl.Sample(torch.randn(2, 4).double(), torch.randint(3, (2,))) for _ in range(60)]
    return losses(learner.run(samples))


def reversible():
    """States rebuilt on the way back, over sequences of ten tokens."""
    torch.manual_seed(5)
    cell = hl.reversible.MidpointCell(hl.reversible.AntisymmetricLinear(4, 2), 4, tau=0.2)
    network = hl.Network.recurrent(cell, nn.Linear(4, 1)).double()
    hyper = hl.Hyper.from_sgd(lr=0.05, momentum=0.5)
    learner = hl.Learner(network, MSE, hyper, credit=hl.Echo(memory="reversible"))
    draw = [(torch.randn(2, 2).double(), torch.randn(2, 1).double()) for _ in range(60)]
    samples = [hl.Sample(u, target, boundary=k % 10 == 9) for k, (u, target) in enumerate(draw)]
    return losses(learner.run(samples))


def losses(reports):
    return [None if report.loss is None else report.loss.item() for report in reports]


FORWARD = {"order": "parallel", "credit": hl.Forward()}
GRADIENT = {"order": "sequential", "credit": hl.Cleared()}
CURVES = {
    "parallel-rate": lambda: of_problem("rate", **FORWARD),
    "parallel-lstm-rk4": lambda: of_problem("lstm", **FORWARD, integrator=hl.RK4()),
    "sequential-tree": lambda: of_problem("tree", order="sequential", credit=hl.Forward()),
    "sequential-gru-cleared": lambda: of_problem("gru", **GRADIENT),
    "sequential-split-sample": lambda: of_problem("split", **GRADIENT, reset_h="sample"),
    "echo-lstm": lambda: of_problem("lstm", "events", order="sequential", credit=hl.Echo(every=7)),
    "echo-gru-truncated": lambda: of_problem("gru", order="sequential", credit=hl.Echo(truncate=3, every=2)),
    "compiled-gru": lambda: of_problem("gru", "events", "compiled", **GRADIENT),
    "compiled-parallel-tree": lambda: of_problem("tree", "continuous", "compiled", **FORWARD),
    "compiled-echo-rnn": lambda: of_problem(
        "next", "events", "compiled", order="sequential", credit=hl.Echo(every=7)
    ),
    "local-unaligned": lambda: local(hold=6),
    "local-aligned": lambda: local(align=True),
    "local-delay-free": lambda: local(delay_free=True),
    "reversible-echo": reversible,
}


@pytest.mark.parametrize("name", CURVES)
def test_the_loss_curve_is_the_one_kept(name):
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    assert CURVES[name]() == [None if value is None else pytest.approx(value, rel=1e-10) for value in kept]
    assert len({value for value in kept if value is not None}) > 20


def test_every_curve_that_is_kept_is_looked_at():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CURVES)


if __name__ == "__main__":
    for name in sys.argv[1:] or CURVES:
        (FOLDER / f"{name}.json").write_text(json.dumps(CURVES[name]()) + "\n")
