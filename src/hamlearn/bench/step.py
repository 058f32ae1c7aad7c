"""One eager step of Hamiltonian Learning against one eager step of `torch.optim.SGD`, on the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from hamlearn.bench import _report
from hamlearn.credit import Cleared
from hamlearn.experiments.models import IRIS_MODELS
from hamlearn.experiments.scenarios import SCENARIOS, Scenario
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.state import Sample

CROSS_ENTROPY = nn.functional.cross_entropy
REACH = {"output": 0.9, "state": 1.1}


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Time both, print the ratios, and write a dated report."""
    u, target = torch.randn(1, 4), torch.tensor([1])
    table = Table("model", "scenario", "SGD µs", "output µs", "ratio", "state µs", "ratio", title="Eager step")
    results, cells = [], []
    for model, make in IRIS_MODELS.items():
        for scenario in SCENARIOS.values():
            torch.manual_seed(0)
            module = make()
            work = {"sgd": _sgd(copy.deepcopy(module), scenario, u, target)}
            work |= {role: _hl(copy.deepcopy(module), scenario, role, u, target) for role in REACH}
            medians = _report.interleaved_medians(work, rounds=5 if quick else 101, repeat=20 if quick else 100)
            ratios = {role: medians[role] / medians["sgd"] for role in REACH}
            cells.append(ratios)
            micro = {name: round(1e6 * seconds, 1) for name, seconds in medians.items()}
            results.append({"model": model, "scenario": scenario.name, "microseconds": micro, "ratios": ratios})
            row = [model, scenario.name, f"{micro['sgd']:.0f}"]
            for role in REACH:
                row += [f"{micro[role]:.0f}", f"{ratios[role]:.2f}"]
            table.add_row(*row)
    Console().print(table)
    worst = {role: max(cell[role] for cell in cells) for role in REACH}
    found = {"reach": REACH, "worst": worst, "cells": results}
    _report.write(out, "step", found)
    return found


def _sgd(module: nn.Module, scenario: Scenario, u: Tensor, target: Tensor) -> Callable[[], object]:
    optimizer = scenario.optimizer(module)

    def step() -> object:
        optimizer.zero_grad()
        loss = CROSS_ENTROPY(module(u), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _hl(module: nn.Module, scenario: Scenario, role: Any, u: Tensor, target: Tensor) -> Callable[[], object]:
    learner = Learner(
        Network.feedforward(module, role=role),
        CROSS_ENTROPY,
        Hyper.from_sgd(**scenario.sgd, tau=scenario.tau),
        order="sequential",
        credit=Cleared(),
        reset_h="sample",
    )
    return lambda: learner.step(Sample(u, target))
