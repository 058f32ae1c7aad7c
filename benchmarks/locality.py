"""Accuracy against groups, hold and alignment of a local learner, next to BackPropagation at its best rate.

`python -m benchmarks.locality` takes the digits of scikit-learn. With `--data DIR` it takes MNIST as well, from a
folder that holds `mnist/`. `--data DIR --one-pass 6` compares one pass over MNIST, by a chain of six layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks._classification import Data, chain, digits, mnist_data
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.sample import Sample

cross_entropy = nn.functional.cross_entropy


@dataclass(frozen=True)
class Setting:
    """One number of groups; `groups` None is plain BackPropagation with SGD."""

    groups: int | None
    hold: int = 1
    align: bool = False

    @property
    def label(self) -> str:
        """What the figure calls it."""
        if self.groups is None:
            return "BackPropagation"
        number = "1 group" if self.groups == 1 else f"{self.groups} groups"
        return f"{number}, {'aligned' if self.align else 'unaligned'}, hold {self.hold}"


def backprop(module: nn.Module, stream: Iterable[Sample], lr: float, momentum: float = 0.0) -> float:
    """Test-then-train accuracy of BackPropagation with `torch.optim.SGD`."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    right = total = 0
    for sample in stream:
        y = module(sample.u)
        optimizer.zero_grad()
        loss: Tensor = cross_entropy(y, sample.target)  # type: ignore[arg-type]
        loss.backward()
        optimizer.step()
        right += int((y.argmax(-1) == sample.target).sum())
        total += len(y)
    return right / total


def local(module: nn.Module, stream: Iterable[Sample], hyper: Hyper, **setting: Any) -> float:
    """Test-then-train accuracy of a local learner; a run that diverges counts what it had right until then."""
    learner = LocalLearner(module, cross_entropy, hyper, on_nonfinite="skip", **setting)
    right = total = 0
    for report in learner.run(stream):
        total += 1
        if not report.skipped and report.y is not None:
            right += int((report.y.argmax(-1) == report.sample.target).sum())
    return right / total


def trial(
    data: Data, setting: Setting, lr: float, *, count: int, passes: int, width: int, depth: int, seed: int = 0
) -> dict[str, Any]:
    """One run from scratch: accuracy while learning, and on the test samples afterwards."""
    module = chain(data.u.shape[1], width, depth, seed=seed)
    stream = data.stream(count, passes, seed)
    if setting.groups is None:
        online = backprop(module, stream, lr)
    else:
        online = local(
            module, stream, Hyper.from_sgd(lr), groups=setting.groups, hold=setting.hold, align=setting.align
        )
    with torch.no_grad():
        test = (module(data.test_u).argmax(-1) == data.test_target).double().mean().item()
    return {**asdict(setting), "label": setting.label, "lr": lr, "online": online, "test": test}


def best(
    splits: Sequence[Data], setting: Setting, rates: Sequence[float], *, tune: int, **shape: int
) -> dict[str, Any]:
    """The rate that is best over one pass of `tune` samples, by test-then-train accuracy; then the mean of runs.

    A report of an unaligned learner is of the last tick of a sample, which it has learned from by then: its rate
    is the one that is best on the 500 samples that follow.
    """
    once = {**shape, "count": tune, "passes": 1}
    data = splits[0]
    new = replace(data, test_u=data.u[tune : tune + 500], test_target=data.target[tune : tune + 500])
    by = "online" if setting.groups is None or setting.align else "test"
    tried = {lr: trial(new, setting, lr, **once)[by] for lr in rates}
    lr = max(rates, key=lambda rate: tried[rate])
    runs = [trial(data, setting, lr, **shape, seed=seed) for seed, data in enumerate(splits)]
    mean = {key: statistics.fmean(run[key] for run in runs) for key in ("online", "test")}
    return {**runs[0], **mean, "tests": [run["test"] for run in runs], "tuning": tried}


def settings(depth: int, quick: bool) -> list[Setting]:
    """BackPropagation, and local learning from one group to one group per layer."""
    groups = (1, depth) if quick else tuple(g for g in (1, 2, 3, 4, 6) if depth % g == 0)
    aligned = [Setting(g, align=True) for g in groups]
    holds = [1, 2 * depth + 2] if quick else [1, 2 * depth, 2 * depth + 4]
    return [Setting(None), *aligned, *(Setting(depth, hold) for hold in holds)]


def run(out: Path, data: str | Path | None = None, quick: bool = False) -> dict[str, Any]:
    """Accuracy against groups, hold and alignment; writes `locality.json` and `locality.png` into `out`.

    Args:
        out: Folder for the results.
        data: Folder that holds `mnist/`; `None` leaves MNIST out.
        quick: A few hundred samples, to see that all works.
    """
    out.mkdir(parents=True, exist_ok=True)
    splits = [digits(seed) for seed in range(1 if quick else 3)]
    count, passes = (300, 1) if quick else (1438, 5)
    rates = (0.02,) if quick else (0.002, 0.005, 0.01, 0.02)
    found = {
        "digits": [
            best(splits, s, rates, tune=50 if quick else 700, count=count, passes=passes, width=64, depth=4)
            for s in settings(4, quick)
        ]
    }
    if data is not None:
        splits, count = [mnist_data(data)], 200 if quick else 5_000
        found["mnist"] = [
            best(splits, s, (0.001, 0.003), tune=50 if quick else 1000, count=count, passes=1, width=128, depth=6)
            for s in settings(6, quick)
        ]
    (out / "locality.json").write_text(json.dumps(found, indent=1) + "\n")
    _draw(found, out / "locality.png")
    return found


def one_pass(
    out: Path, data: str | Path, depth: int = 6, rates: Sequence[float] = (0.002, 0.003, 0.005, 0.008)
) -> dict[str, Any]:
    """One pass over all of MNIST, a new image in every tick: BackPropagation and one aligned node per layer.

    Each at the rate that is best on the first 10,000 images; writes `one-pass-<depth>.json` into `out`.

    Args:
        out: Folder for the results.
        data: Folder that holds `mnist/`.
        depth: Layers of the chain, of 128 neurons each.
        rates: Learning rates to try.
    """
    out.mkdir(parents=True, exist_ok=True)
    splits = [mnist_data(data)]
    shape = {"tune": 10_000, "count": len(splits[0].u), "passes": 1, "width": 128, "depth": depth}
    ways = (Setting(None), Setting(depth, align=True))
    found = {"depth": depth, "rows": [best(splits, way, rates, **shape) for way in ways]}
    (out / f"one-pass-{depth}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def _draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(found) + 1, 4), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        shown = sorted(
            rows, key=lambda row: (row["groups"] is not None, not row["align"], row["groups"] or 0, row["hold"])
        )
        colours = ["black" if r["groups"] is None else "tab:blue" if r["align"] else "tab:orange" for r in shown]
        accuracy = [100 * row["test"] for row in shown]
        bars = axes.barh([row["label"] for row in shown], accuracy, color=colours)
        axes.bar_label(bars, labels=[f"{value:.1f}" for value in accuracy], padding=2, fontsize=8)
        axes.invert_yaxis()
        axes.set(xlabel="test accuracy (%)", xlim=(0, 110), title=name)
    figure.savefig(path, dpi=120)


def main() -> None:
    """The command: measures, writes results, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/locality"), help="folder for results and figure")
    parser.add_argument("--data", type=Path, help="folder that holds mnist/*.gz; without it, digits only")
    parser.add_argument(
        "--one-pass", type=int, metavar="LAYERS", help="instead: one pass over MNIST; needs --data"
    )
    parser.add_argument("--quick", action="store_true", help="a few hundred samples: checks that it works")
    given = parser.parse_args()
    if given.one_pass is not None:
        if given.data is None:
            parser.error("--one-pass reads MNIST: give --data, a folder that holds mnist/*.gz")
        found = {"MNIST, one pass": one_pass(given.out, given.data, given.one_pass)["rows"]}
    else:
        found = run(given.out, given.data, given.quick)
    for name, rows in found.items():
        table = Table("setting", "rate", "while learning", "on new samples", title=name)
        for row in rows:
            table.add_row(row["label"], f"{row['lr']:g}", f"{row['online']:.2%}", f"{row['test']:.2%}")
        Console().print(table)


if __name__ == "__main__":
    main()
