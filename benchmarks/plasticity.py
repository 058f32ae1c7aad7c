"""Loss of plasticity: small networks that follow a slowly changing target for a million steps, hundreds at once.

The problem is the slowly-changing regression of Dohare et al. (Nature 632, 2024). 15 of 20 input bits stay for
10,000 steps, then one of them flips; 5 bits are drawn at every step. The target is the output of a fixed random
network of 100 threshold units. A learner with 5 hidden units cannot represent all of it and has to keep up with
the part that the present slow bits select. One call of `hl.loops.scan` takes all runs at all step sizes through a
block of steps. Noise is added and units are replaced between two blocks of 100 steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import hamlearn as hl
from benchmarks import _report

SLOW, FAST, HIDDEN, UNITS, HOLD, BINS = 15, 5, 5, 100, 10_000, 50
"""Bits that flip now and then, bits drawn at every step, hidden units, target units, steps between flips, bins."""
BLOCK = 100
"""Steps between two decisions."""
RATES = {"relu": (0.01, 0.003, 0.001), "tanh": (0.03, 0.01, 0.003)}
WEIGHTS = ("inward", "bias", "outward", "shift")
State = dict[str, Tensor]
"""Weights and what a method keeps beside them; runs are the last axis and step sizes the last but one."""


class Problem:
    """Inputs and targets of some runs.

    Between two flips an input is one of 32, so the target network is asked 32 times instead of 10,000 times.
    """

    def __init__(self, runs: int, seed: int) -> None:
        self.random, inputs = np.random.default_rng(seed), SLOW + FAST
        self.slow = self.random.integers(0, 2, (SLOW, runs))
        self.signs = 2 * self.random.integers(0, 2, (runs, UNITS, inputs)) - 1
        self.outward = 2 * self.random.integers(0, 2, (runs, UNITS)) - 1
        self.threshold = 0.7 * inputs - (self.signs < 0).sum(-1)
        self.patterns = (np.arange(2**FAST)[:, None] >> np.arange(FAST)) & 1

    def hold(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slow bits, and fast bits and targets of each step until the next flip."""
        runs = np.arange(self.slow.shape[1])
        flipped = self.random.integers(SLOW, size=len(runs))
        self.slow[flipped, runs] ^= 1
        fast = np.einsum("ruf,pf->pru", self.signs[..., SLOW:], self.patterns)
        drive = fast + np.einsum("rus,sr->ru", self.signs[..., :SLOW], self.slow)
        table = ((drive > self.threshold) * self.outward).sum(-1)
        shown = self.random.integers(2**FAST, size=(HOLD, len(runs)))
        bits = self.patterns[shown].transpose(0, 2, 1)
        return tuple(
            torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
            for x in (self.slow, bits, table[shown, runs])
        )  # type: ignore[return-value]


class Setting(NamedTuple):
    """A method: what it adds to plain descent, with its strength and its noise."""

    method: str
    strength: float = 0.0
    noise: float = 0.0


GRID = {
    "BackPropagation": [Setting("plain")],
    "L2": [Setting("l2", s) for s in (1e-2, 1e-3, 1e-4)],
    "L2 towards the start": [Setting("l2 start", s) for s in (1e-1, 1e-2, 1e-3)],
    "shrink and perturb": [Setting("l2", s, n) for s in (1e-2, 1e-3, 1e-4) for n in (1e-2, 1e-3)],
    "continual backprop": [Setting("replace", s) for s in (1e-3, 1e-4, 1e-5)],
    "UPGD": [Setting("utility", s, n) for s in (0.0, 1e-3) for n in (1e-1, 1e-2)],
}
"""Settings by method; the best of each on seeds of their own is measured."""


@dataclass
class Learners:
    """All runs of a method at all step sizes.

    Attributes:
        state: Weights and what the method keeps.
        random: For first weights, noise and new units.
    """

    setting: Setting
    act: str
    rates: Tensor
    runs: int
    random: torch.Generator
    state: State = field(init=False)

    def __post_init__(self) -> None:
        shape = (len(self.rates), self.runs)
        self.state = {
            "inward": self._first(SLOW + FAST, HIDDEN, *shape),
            "bias": torch.zeros(HIDDEN, *shape),
            "outward": self._first(HIDDEN, *shape),
            "shift": torch.zeros(shape),
            "slow": torch.zeros(SLOW, self.runs),
        }
        if self.setting.method == "l2 start":
            self.state |= {f"first {name}": self.state[name].clone() for name in WEIGHTS}
        if self.setting.method == "replace":
            self.state |= {name: torch.zeros(HIDDEN, *shape) for name in ("utility", "mean", "age")}
        if self.setting.method == "utility":
            self.state |= {f"worth {name}": torch.zeros_like(self.state[name]) for name in WEIGHTS}
        self.step = step_of(self.setting, self.act, self.rates[:, None])
        self.due = 0.0

    def _first(self, fan: int, *shape: int) -> Tensor:
        """Kaiming's uniform distribution."""
        gain = math.sqrt(2.0) if self.act == "relu" else 5 / 3
        bound = gain * math.sqrt(3 / fan)
        return bound * (2 * torch.rand((fan, *shape), generator=self.random) - 1)

    def learn(self, bits: Tensor, targets: Tensor) -> Tensor:
        """Take steps; returns the squared errors."""
        self.state, errors = hl.loops.scan(self.step, self.state, {"bits": bits, "target": targets})
        if self.setting.noise:
            self._perturb(len(bits))
        if self.setting.method == "replace":
            self.due += self.setting.strength * HIDDEN * len(bits)
            while self.due >= 1:
                self.due -= 1
                self._replace()
        return errors

    def _perturb(self, steps: int) -> None:
        """The noise of some steps at once: as many independent draws have the same variance."""
        for name in WEIGHTS:
            weight = self.state[name]
            drawn = torch.randn(weight.shape, generator=self.random) * self.setting.noise * math.sqrt(steps)
            if self.setting.method == "utility":
                drawn *= self.rates[:, None] * (1 - gates(self.state)[name])
            self.state[name] = weight + drawn

    def _replace(self) -> None:
        """New input weights for the unit of each learner that has contributed least; young units are spared."""
        s = self.state
        worth = torch.where(s["age"] > 100, s["utility"] / s["inward"].abs().sum(0), math.inf)
        chosen = torch.zeros_like(worth).scatter_(0, worth.argmin(0, keepdim=True), 1.0).bool()
        chosen &= worth.isfinite()
        s["inward"] = torch.where(chosen, self._first(SLOW + FAST, *chosen.shape), s["inward"])
        for name in ("bias", "outward", "utility", "mean", "age"):
            s[name] = torch.where(chosen, 0.0, s[name])

    def hidden(self, patterns: np.ndarray) -> Tensor:
        """What the hidden units make of each of the inputs that can come before the next flip."""
        fast = torch.from_numpy(patterns.astype(np.float32))
        slow = (self.state["inward"][:SLOW] * self.state["slow"][:, None, None]).sum(0)
        field = slow + torch.einsum("pf,fhsr->phsr", fast, self.state["inward"][SLOW:])
        return getattr(torch, self.act)(field + self.state["bias"])


def step_of(setting: Setting, act: str, rates: Tensor) -> Callable[[State, State], tuple[State, Tensor]]:
    """One step of all learners, for `hl.loops.scan`."""
    function, method, strength = getattr(torch, act), setting.method, setting.strength

    def step(state: State, row: State) -> tuple[State, Tensor]:
        weights = {name: state[name].detach().requires_grad_() for name in WEIGHTS}
        x = torch.cat([state["slow"], row["bits"]])[:, None, None]
        hidden = function((weights["inward"] * x).sum(0) + weights["bias"])
        error = ((weights["outward"] * hidden).sum(0) + weights["shift"] - row["target"]) ** 2
        slopes = dict(zip(WEIGHTS, torch.autograd.grad(error.sum(), list(weights.values())), strict=True))
        kept: State = {}
        if method == "utility":
            kept = {f"worth {k}": 0.999 * state[f"worth {k}"] - 0.001 * slopes[k] * weights[k] for k in WEIGHTS}
            gate = gates(state | kept)
            slopes = {name: (slopes[name] + strength * weights[name]) * (1 - gate[name]) for name in WEIGHTS}
        if method in ("l2", "l2 start"):
            start = {name: state.get(f"first {name}", 0.0) for name in WEIGHTS}
            slopes = {name: slopes[name] + strength * (weights[name] - start[name]) for name in WEIGHTS}
        if method == "replace":
            mean = 0.99 * state["mean"] + 0.01 * hidden
            contribution = (hidden - mean).abs() * weights["outward"].abs()
            kept = {
                "utility": 0.99 * state["utility"] + 0.01 * contribution,
                "mean": mean,
                "age": state["age"] + 1,
            }
        moved = {name: (weights[name] - rates * slopes[name]).detach() for name in WEIGHTS}
        return state | moved | {name: value.detach() for name, value in kept.items()}, error.detach()

    return step


def gates(state: State) -> State:
    """How much each weight is protected: the sigmoid of its utility relative to the largest one of its network."""
    worth = {name: state[f"worth {name}"] for name in WEIGHTS}
    largest = worth["shift"]
    for name in ("inward", "bias", "outward"):
        largest = torch.maximum(largest, worth[name].flatten(0, -3).amax(0))
    return {name: torch.sigmoid(value / largest.abs().clamp_min(1e-12)) for name, value in worth.items()}


def curves(setting: Setting, act: str, runs: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Mean squared error, share of units that are dead or saturated, and rank of the hidden layer, over time.

    Each has the bins of time as its first axis, then step sizes, then runs. Targets and first weights depend on
    the seed alone, so all methods see the same.
    """
    problem, random = Problem(runs, seed), torch.Generator().manual_seed(seed)
    learners = Learners(setting, act, torch.tensor(RATES[act]), runs, random)
    block = BLOCK if setting.noise or setting.method == "replace" else HOLD
    errors, dead, ranks, holds = [], [], [], max(1, steps // HOLD)
    for _ in range(holds):
        slow, bits, targets = problem.hold()
        learners.state["slow"] = slow
        parts = zip(bits.split(block), targets.split(block), strict=True)
        errors.append(torch.stack([learners.learn(*part).mean(0) for part in parts]).mean(0))
        hidden = learners.hidden(problem.patterns)
        idle = (hidden == 0) if act == "relu" else (hidden.abs() > 0.9)
        dead.append(idle.all(0).float().mean(0))
        ranks.append(effective_rank(hidden))
    size = max(1, holds // BINS)
    found = {"error": errors, "dead": dead, "rank": ranks}
    return {name: torch.stack([torch.stack(rows[k : k + size]).mean(0) for k in range(0, holds - size + 1, size)])
            for name, rows in found.items()}  # fmt: skip


def effective_rank(hidden: Tensor) -> Tensor:
    """How many singular values make up 99 % of their sum."""
    values = torch.linalg.svdvals(hidden.permute(2, 3, 0, 1))
    share = values.cumsum(-1) / values.sum(-1, keepdim=True).clamp_min(1e-12)
    return (share < 0.99).sum(-1).add(1).float()


def chosen(name: str, act: str, quick: bool) -> Setting:
    """The setting with the smallest error at the end, on seeds that are not reported."""
    if len(GRID[name]) == 1:
        return GRID[name][0]
    runs, steps = (2, HOLD) if quick else (20, 30 * HOLD)
    late = {s: curves(s, act, runs, steps, seed=10_000)["error"][-5:].mean((0, 2)).min() for s in GRID[name]}
    return min(late, key=lambda setting: float(late[setting]))


def options(given: list[str]) -> dict[str, Any]:
    """Options of its own on the command line."""
    parser = argparse.ArgumentParser(prog="hamlearn bench plasticity", description=__doc__)
    parser.add_argument("--act", choices=list(RATES), help="one activation instead of both")
    return vars(parser.parse_args(given))


def run(out: Path, quick: bool = False, act: str | None = None) -> dict[str, Any]:
    """Take all methods through the problem, print tables, and write a dated report and figures."""
    runs, steps = (3, 2 * HOLD) if quick else (100, 1_000_000)
    problem = {"steps": steps, "runs": runs, "block": BLOCK}
    report: dict[str, Any] = {"problem": problem}
    for name in RATES if act is None else [act]:
        report[name] = [measured(method, name, runs, steps, quick) for method in GRID]
        _print(name, report[name])
    path = _report.write(out, "plasticity", report)
    for name in set(report) - {"problem"}:
        draw(report[name], steps, path.with_name(f"{path.stem}-{name}.png"))
    return report


def measured(method: str, act: str, runs: int, steps: int, quick: bool) -> dict[str, Any]:
    """A method at its best setting and step size; "first" and "last" are mean errors of 5 % of the steps."""
    begin = time.perf_counter()
    setting = chosen(method, act, quick)
    tuned = time.perf_counter()
    found = curves(setting, act, runs, steps, seed=0)
    seconds = time.perf_counter() - tuned
    tail = max(1, len(found["error"]) // 20)
    best = int(found["error"][-tail:].mean((0, 2)).nan_to_num(math.inf).argmin())
    ends = found["error"][-tail:, best].mean(0)
    return {
        "method": method,
        "setting": setting._asdict(),
        "rates": list(RATES[act]),
        "best rate": RATES[act][best],
        "first": float(found["error"][:tail, best].mean()),
        "last": float(ends.mean()),
        "standard error": float(ends.std() / math.sqrt(runs)),
        "dead": float(found["dead"][-tail:, best].mean()),
        "rank": float(found["rank"][-tail:, best].mean()),
        "seconds": seconds,
        "seconds of tuning": tuned - begin,
        "nanoseconds per learner and step": 1e9 * seconds / (steps * runs * len(RATES[act])),
        "curves": {key: value.mean(-1).T.tolist() for key, value in found.items()},
    }


def _print(act: str, rows: list[dict[str, Any]]) -> None:
    table = Table("method", "strength", "noise", "rate", "first", "last", "± s.e.", "dead", "rank", "s", title=act)
    for row in rows:
        setting = (f"{row['setting'][key]:g}" for key in ("strength", "noise"))
        errors = (f"{row[key]:.3f}" for key in ("first", "last", "standard error"))
        rest = f"{row['dead']:.2f}", f"{row['rank']:.1f}", f"{row['seconds']:.1f}"
        table.add_row(row["method"], *setting, f"{row['best rate']:g}", *errors, *rest)
    Console(width=120).print(table)


def draw(rows: list[dict[str, Any]], steps: int, path: Path) -> None:
    """BackPropagation at each step size, all methods at their best one, and what becomes of the hidden units."""
    import matplotlib.pyplot as plt

    figure, (left, *axes) = plt.subplots(1, 4, figsize=(15, 4.2), layout="constrained")
    thousands = np.linspace(0, steps / 1000, len(rows[0]["curves"]["error"][0]))
    for rate, values in zip(rows[0]["rates"], rows[0]["curves"]["error"], strict=True):
        left.plot(thousands, values, label=f"step size {rate:g}")
    left.set_title("BackPropagation: squared error")
    left.legend(fontsize=8)
    for row in rows:
        best = row["rates"].index(row["best rate"])
        for axis, key in zip(axes, ("error", "dead", "rank"), strict=True):
            axis.plot(thousands, row["curves"][key][best], label=row["method"])
    titles = "all at their best step size", "dead or saturated units", "rank of the hidden layer"
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    for axis in (left, *axes):
        axis.set_xlabel("thousand steps")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(rows))
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(Path("out/bench"))
