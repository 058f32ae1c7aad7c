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

from benchmarks import _report
from hamlearn.credit import Cleared
from hamlearn.experiments.models import MODELS
from hamlearn.experiments.scenarios import SCENARIOS, Scenario
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample

CROSS_ENTROPY = nn.functional.cross_entropy
REACH = {"output": 0.85, "state": 0.95}
WIDE, WIDE_REACH = (1024, 2048, 4096), 1.1
"""Widths of a single large layer, where memory is what a step waits for, and their reach."""
SHAPES = {"Iris": (1, 4), "MNIST": (1, 1, 28, 28), "IMDb": (1, 50, 50)}
"""One sample each; a review of 50 words, since longer ones measure the recurrent layer alone."""
REPEATS = {"Iris": 100, "MNIST": 10, "IMDb": 10}
"""Steps between two looks at the clock."""


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Time both, print the ratios, and write a dated report.

    The ratio of the gradient alone is the floor: forward and backward pass are the same in every learner.
    """
    table = Table("model", "scenario", "SGD µs", "gradient", *REACH, title="Eager step, as share of SGD's")
    results, cells = [], []
    target = torch.tensor([1])
    for model in MODELS.values():
        u = torch.randn(SHAPES[model.data])
        for scenario in SCENARIOS.values():
            torch.manual_seed(0)
            module = model.make(3)
            work = {"sgd": _sgd(copy.deepcopy(module), scenario, u, target)}
            work["gradient"] = _gradient(copy.deepcopy(module), u, target)
            work |= {role: _hl(copy.deepcopy(module), scenario, role, u, target) for role in REACH}
            medians = _report.interleaved_medians(
                work, rounds=5 if quick else 101, repeat=2 if quick else REPEATS[model.data]
            )
            ratios = {name: medians[name] / medians["sgd"] for name in ("gradient", *REACH)}
            cells.append(ratios)
            micro = {name: round(1e6 * seconds, 1) for name, seconds in medians.items()}
            results.append(
                {"model": model.name, "scenario": scenario.name, "microseconds": micro, "ratios": ratios}
            )
            shares = [f"{ratio:.2f}" for ratio in ratios.values()]
            table.add_row(model.name, scenario.name, f"{micro['sgd']:.0f}", *shares)
    wide = [_wide(quick, width) for width in (WIDE[:1] if quick else WIDE)]
    for found in wide:
        for momentum, ratio in found["ratios"].items():
            table.add_row(f"Linear {found['width']}", f"momentum {momentum}", "", "", f"{ratio:.2f}", "")
    Console().print(table)
    worst = {role: max(cell[role] for cell in cells) for role in REACH}
    found = {"reach": REACH, "worst": worst, "cells": results, "wide": wide}
    _report.write(out, "step", found)
    return found


def _wide(quick: bool, width: int) -> dict[str, Any]:
    """A layer of `width` by `width`, batch 1, squared error: a step of Hamiltonian Learning over one of SGD."""
    ratios, mse = {}, nn.functional.mse_loss
    u, target = torch.randn(1, width), torch.randn(1, width)
    for momentum in (0.0, 0.5):
        torch.manual_seed(0)
        module = nn.Linear(width, width)
        twin = copy.deepcopy(module)
        learner = Learner(Network.feedforward(module), mse, Hyper.from_sgd(lr=1e-3, momentum=momentum))
        optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3, momentum=momentum)

        def sgd(twin: nn.Module = twin, optimizer: torch.optim.Optimizer = optimizer) -> object:
            optimizer.zero_grad()
            loss = mse(twin(u), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        work = {"sgd": sgd, "hl": lambda learner=learner: learner.step(Sample(u, target))}
        medians = _report.interleaved_medians(work, rounds=5 if quick else 51, repeat=2 if quick else 5)
        ratios[str(momentum)] = medians["hl"] / medians["sgd"]
    return {"width": width, "reach": WIDE_REACH, "ratios": ratios}


def _gradient(module: nn.Module, u: Tensor, target: Tensor) -> Callable[[], object]:
    weights = list(module.parameters())
    return lambda: torch.autograd.grad(CROSS_ENTROPY(module(u), target), weights)


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
