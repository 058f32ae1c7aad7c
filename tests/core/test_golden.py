"""Short loss curves, kept in the repository, that a refactoring must reproduce.

Where a change of the mathematics is meant, run `python -m tests.core.test_golden` and look at the difference.
"""

import json
from pathlib import Path

import pytest

import hamlearn as hl
from tests.problems import random_problem

FOLDER = Path(__file__).parent.parent / "golden"
RUNS = {
    "parallel-rate": ("rate", {"order": "parallel", "credit": hl.Forward()}),
    "parallel-lstm-rk4": ("lstm", {"order": "parallel", "credit": hl.Forward(), "integrator": hl.RK4()}),
    "sequential-tree": ("tree", {"order": "sequential", "credit": hl.Forward()}),
    "sequential-gru-cleared": ("gru", {"order": "sequential", "credit": hl.Cleared()}),
    "sequential-split-sample": ("split", {"order": "sequential", "credit": hl.Cleared(), "reset_h": "sample"}),
}


def curve(kind, setting):
    problem = random_problem(kind, 5, 60, clock="continuous")
    learner = problem.learner(**setting)
    reports = [learner.step(sample) for sample in problem.samples]
    return [None if report.loss is None else report.loss.item() for report in reports]


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_curve_is_the_one_kept(name):
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    assert curve(*RUNS[name]) == [None if value is None else pytest.approx(value, rel=1e-10) for value in kept]


if __name__ == "__main__":
    for name, run in RUNS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(curve(*run)) + "\n")
