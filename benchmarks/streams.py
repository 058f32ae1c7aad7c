"""The default estimators, test-then-train, on whole streams of rows: how right, how sure, how fast.

The protocol is frozen. Each row is predicted before its target is learned, once, in its order, and all rows
count from the first on; nothing is set per stream. The figures are means over the seeds, with the largest
distance between two seeds. Shuffled labels must fall to the majority, or to the mean; shuffled rows show what
their order is worth. The speed is that of blocks, and of one row at a time from a dictionary, predicted and
then learned.

A folder of streams holds a file `NAME.npz` for each, with `X` (rows × columns) and `y` (whole numbers are
classes). Without a folder the streams are those that River brings along. `--peers` runs River's forests and
ensembles on their documented defaults beside the estimators, as they come and with the previous target as one
more column.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import _report, _streams_peers
from benchmarks._streams_scores import classes_scores, numbers_scores
from hamlearn.errors import ConfigError
from hamlearn.estimators import Classifier, Regressor

SINGLE_ROWS = 2000
"""Rows that are also taken one at a time, for the clock."""
BUNDLED = ("Phishing", "Bananas", "ImageSegments", "TrumpApproval", "ChickWeights")
Stream = tuple[np.ndarray, np.ndarray]


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """Arguments of `run` from options of the command line."""
    parser = argparse.ArgumentParser("hamlearn bench streams")
    parser.add_argument("--data", type=Path, help="a folder with one NAME.npz for each stream")
    parser.add_argument("--stream", dest="names", action="append", default=[], help="which stream; without: all")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--rows", type=int, help="how many rows of each stream; without: all")
    parser.add_argument("--delay", type=int, default=0, help="how many rows late each label comes")
    parser.add_argument("--peers", action="store_true", help="River's forests and ensembles too, which takes long")
    return vars(parser.parse_args(arguments))


def run(
    out: Path,
    quick: bool = False,
    data: Path | None = None,
    names: Sequence[str] = (),
    seeds: int = 1,
    rows: int | None = None,
    delay: int = 0,
    peers: bool = False,
) -> list[dict[str, Any]]:
    """Score all streams, print a table, write a dated report."""
    torch.set_num_threads(1)
    streams = bundled() if data is None else stored(data)
    if unknown := set(names) - set(streams):
        raise ConfigError(f"--stream {', '.join(sorted(unknown))} is not there: give one of {', '.join(streams)}")
    found = []
    for name in list(names) or (list(streams)[:2] if quick else list(streams)):
        X, y = streams[name]()
        count = 400 if quick else rows
        found.append({"stream": name, **measure(X[:count], y[:count], seeds, delay, peers)})
        Console().print(found[-1])
    for kind in ("accuracy", "R2"):
        _print(kind, [row for row in found if kind in row["scores"]])
    report = "streams" if not delay else f"streams-{delay}-late"
    rerun = f"hamlearn bench streams --seeds {seeds}{f' --delay {delay}' if delay else ''}"
    _report.write(out, report, {"methods": __doc__, "streams": found}, rerun + (" --data DIR" if data else ""))
    return found


def stored(folder: Path) -> dict[str, Callable[[], Stream]]:
    """The streams of a folder, by name."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise ConfigError(f"--data {folder} holds no stream: give a folder with files NAME.npz that hold X and y")

    def read(path: Path) -> Stream:
        with np.load(path) as data:
            return data["X"], data["y"]

    return {path.stem: partial(read, path) for path in paths}


def bundled() -> dict[str, Callable[[], Stream]]:
    """Streams that River brings along, by name; texts are whole numbers in the order in which they come."""
    from river import datasets

    def read(name: str) -> Stream:
        rows, targets = zip(*getattr(datasets, name)(), strict=True)
        X = np.array([[_number(value) for value in row.values()] for row in rows])
        if isinstance(targets[0], float | int) and not isinstance(targets[0], bool):
            return X, np.array(targets, dtype=np.float64)
        return X, np.unique(np.array(targets), return_inverse=True)[1]

    return {name: partial(read, name) for name in BUNDLED}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, float | int) else float(getattr(value, "timestamp", lambda: np.nan)())


def measure(X: np.ndarray, y: np.ndarray, seeds: int, delay: int = 0, peers: bool = False) -> dict[str, Any]:
    """Scores, controls and times on one stream."""
    X = X.astype(np.float64)
    random = np.random.default_rng(0)
    order = random.permutation(len(y))
    tried, seconds = [], []
    for seed in range(seeds):
        start = time.perf_counter()
        tried.append(score(X, y, seed, delay))
        seconds.append(time.perf_counter() - start)
    found: dict[str, Any] = {
        "rows": len(y),
        "columns": X.shape[1],
        "scores": {name: float(np.mean([one[name] for one in tried])) for name in tried[0]},
        "spread over seeds": {name: float(np.ptp([one[name] for one in tried])) for name in tried[0]},
        "microseconds a row": 1e6 * min(seconds) / len(y),
        "one row at a time": _singles(X[:SINGLE_ROWS], y[:SINGLE_ROWS]),
        "shuffled labels": score(X, y[order], 0, delay),
        "shuffled rows": score(X[order], y[order], 0, delay),
    }
    if peers:
        found["peers"] = _streams_peers.scores(X, y, delay)
    return found


def score(X: np.ndarray, y: np.ndarray, seed: int, delay: int = 0) -> dict[str, float]:
    """Test-then-train scores of the default estimator."""
    late = {"delay": delay} if delay else {}
    if y.dtype.kind in "iu":
        model = Classifier(seed)
        p = model.predict_proba_then_learn(X, y, **late)
        places = {label: place for place, label in enumerate(model.classes)}
        return classes_scores(p, np.array([places[label] for label in y.tolist()]))
    return numbers_scores(y, *Regressor(seed).predict_interval_then_learn(X, y, coverage=0.9, **late))


def _singles(X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Microseconds to predict and learn one row from a dictionary: the median, and the 99th percentile."""
    model = Classifier() if y.dtype.kind in "iu" else Regressor()
    names = [f"x{place}" for place in range(X.shape[1])]
    taken = []
    for row, target in zip(X.tolist(), y.tolist(), strict=True):
        x = dict(zip(names, row, strict=True))
        start = time.perf_counter()
        model.predict_one(x)
        model.learn_one(x, target)
        taken.append(1e6 * (time.perf_counter() - start))
    late = taken[len(taken) // 2 :]  # the first rows compile the loops
    return {"p50": float(np.quantile(late, 0.5)), "p99": float(np.quantile(late, 0.99))}


def _print(kind: str, found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        return
    columns = [*found[0]["scores"], "µs a row", "one row", "shuffled labels", "shuffled rows"]
    table = Table("stream", *columns, title="Test-then-train, all rows")
    for row in found:
        values = [*row["scores"].values(), row["microseconds a row"], row["one row at a time"]["p50"]]
        values += [row["shuffled labels"][kind], row["shuffled rows"][kind]]
        table.add_row(row["stream"], *(f"{value:.4g}" for value in values))
    Console(width=160).print(table)
