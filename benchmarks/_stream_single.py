"""One learner on one stream, for `hamlearn bench stream`: who is measured, how, and whether all learn the same."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from benchmarks import _jax_stream, _report
from benchmarks import _stream_contenders as contenders
from benchmarks._stream_workloads import WIDE, WORKLOADS, Problem, Workload, make_problem
from hamlearn.errors import ConfigError, HamlearnError

Make = Callable[[Problem], contenders.Pass]
REACH = {"over_sgd": 40.0, "over_jax": 1.0, "scan_over_loop": 1.15, "scan_over_jax": 2.0}
"""To reach on the first workload: how many times as fast as each the compiled engine is, how many times the C loop
alone `scan` takes, and how many times as fast as JAX it is."""
SLOW = {"sgd_eager", "hl_eager", "sgd_compiled", "sgd_one_graph"}
"""Contenders that are called for every step: one pass a round."""
BURST = 10
"""Passes of the others in a round."""
COMPILED = ("sgd_compiled", "sgd_one_graph", "hl_compiled", "jax_scan")
"""Contenders that compile; the three behind `hl_compiled` use what it has compiled."""
COMPARED = 1_000
"""Steps from the start on over which loss curves are compared."""
TOLERANCE = {"hl_eager": 1e-5, "jax_scan": 1e-3}
CLOSE = 1e-4
"""Largest difference of two losses over the mean loss, where `TOLERANCE` says nothing else."""


def measure(device: str, quick: bool = False) -> dict[str, Any]:
    """All workloads, each with every contender that this machine can run."""
    steps, rounds = (contenders.CHUNK, 2) if quick else (8 * contenders.CHUNK, 15)
    few = steps
    if device != "cpu" and not quick:
        # A kernel for a whole stream is started once: 8,192 steps in a call. An eager step on a GPU takes a
        # millisecond: less of them keeps all of it within minutes.
        steps, few, rounds = 32 * contenders.CHUNK, 4 * contenders.CHUNK, 3
    workloads = WORKLOADS if device == "cpu" else [*WORKLOADS, *WIDE]
    cells = [_cell(workload, steps, few, rounds, device, _contenders(workload, quick)) for workload in workloads]
    found = {"reach": REACH, "chunk": contenders.CHUNK, "steps": steps, "steps_one_by_one": few}
    return {**found, "rounds": rounds, "cells": cells}


def _contenders(workload: Workload, quick: bool) -> dict[str, Make]:
    chosen: dict[str, Make] = {"sgd_eager": contenders.sgd_eager, "hl_eager": contenders.hl_eager}
    # Inductor takes ten seconds and more for each network.
    if workload.follows_sgd and workload not in WIDE and (workload.twin == "mlp" or not quick):
        chosen |= {"sgd_compiled": contenders.sgd_compiled, "sgd_one_graph": contenders.sgd_one_graph}
    chosen |= {
        "hl_compiled": contenders.hl_compiled,
        "hl_each_loss": contenders.hl_each_loss,
        "hl_scan": contenders.hl_scan,
        "hl_loop": contenders.hl_loop,
        "jax_scan": _jax_scan(),
    }
    return chosen


def _jax_scan() -> Make:
    if importlib.util.find_spec("jax") is None:
        return _without_jax
    # Now, so that the import does not count as compiling a step.
    _jax_stream.load()
    return _jax_stream.scan


def _without_jax(problem: Problem) -> contenders.Pass:
    raise ConfigError("JAX is not installed: pip install 'hamlearn[bench]'")


def _cell(
    workload: Workload, steps: int, few: int, rounds: int, device: str, chosen: dict[str, Make]
) -> dict[str, Any]:
    """All contenders on one workload; those that are called for every step see the first `few` samples only."""
    whole = make_problem(workload, steps, device)
    beginning = replace(whole, u=whole.u[:few], target=whole.target[:few])
    passes: dict[str, contenders.Pass] = {}
    curves: dict[str, Tensor] = {}
    first: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, make in chosen.items():
        begin = time.perf_counter()
        try:
            one_pass = make(beginning if name in SLOW else whole)
            curves[name] = one_pass()
        except Exception as error:
            if name.endswith("_eager") or (name.startswith("hl_") and device == "cpu"):
                raise
            # Some machines lack a compiler or a library: the others are measured all the same.
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            continue
        first[name] = time.perf_counter() - begin
        passes[name] = one_pass
    differences = _agreement(workload, curves)
    quartiles = _quartiles(passes, rounds)
    medians = {name: middle / len(curves[name]) for name, (_, middle, _) in quartiles.items()}
    ended = {name: float(one_pass().mean()) for name, one_pass in passes.items()}
    both = {"hl_scan", "hl_loop"} <= medians.keys()
    if not all(math.isfinite(loss) for loss in ended.values()):
        raise HamlearnError(f"{workload.name} did not stay stable: lower its learning rate, lr={workload.lr:g}")
    return {
        "workload": workload.name,
        "credit": type(workload.credit).__name__,
        "microseconds": {name: round(1e6 * seconds, 3) for name, seconds in medians.items()},
        "quartiles": {
            name: [round(1e6 * seconds / len(curves[name]), 3) for seconds in (low, high)]
            for name, (low, _, high) in quartiles.items()
        },
        "steps_per_second": {name: round(1 / seconds) for name, seconds in medians.items()},
        "over_sgd": _times_as_fast(medians, "sgd_eager"),
        "over_jax": _times_as_fast(medians, "jax_scan"),
        "scan_over_loop": round(medians["hl_scan"] / medians["hl_loop"], 3) if both else None,
        "compile_seconds": {
            name: round(first[name] - quartiles[name][1], 2) for name in COMPILED if name in passes
        },
        "loss_differences": differences,
        "mean_loss": {"first": float(curves["hl_eager"].mean()), "last": ended["hl_eager"]},
        "missing": missing,
    }


def _quartiles(passes: dict[str, contenders.Pass], rounds: int) -> dict[str, list[float]]:
    """Quartiles of the seconds of a pass; all take turns, and short passes take several in a round.

    Every other turn goes backwards: a contender finds warm caches after a similar one.
    """
    slow = [name for name in passes if name in SLOW]
    short = [name for name in passes if name not in SLOW]
    for one_pass in passes.values():
        one_pass()
    turns = rounds * [*slow, *(BURST // 2 * [*short, *reversed(short)])]
    times = _report.interleaved(passes, turns, 1, time.perf_counter)
    return {name: statistics.quantiles(values, n=4, method="inclusive") for name, (values,) in times.items()}


def _times_as_fast(medians: dict[str, float], reference: str) -> dict[str, float]:
    if reference not in medians:
        return {}
    return {name: round(medians[reference] / seconds, 3) for name, seconds in medians.items() if name != reference}


def _agreement(workload: Workload, curves: dict[str, Tensor]) -> dict[str, float]:
    """How far each loss curve is from that of the reference, over the mean loss; raises if that is too far."""
    reference = "sgd_eager" if workload.follows_sgd else "hl_eager"
    true = curves[reference][:COMPARED].double()
    differences = {}
    for name, curve in curves.items():
        if name == reference or (name == "sgd_eager" and not workload.follows_sgd):
            continue
        difference = float((curve[: len(true)].double() - true).abs().max() / true.mean())
        allowed = TOLERANCE.get(name, CLOSE)
        if not difference <= allowed:
            raise HamlearnError(
                f"{workload.name}: the losses of {name} are {difference:.1e} of the mean loss away from those of "
                f"{reference}, more than {allowed:g}: they do not learn the same, and times would say nothing"
            )
        differences[name] = difference
    return differences


def show(found: dict[str, Any], device: str) -> None:
    """Print a table for each workload."""
    from rich.console import Console
    from rich.table import Table

    for cell in found["cells"]:
        title = f"{cell['workload']}, {device}"
        table = Table("contender", "µs a step", "steps a second", "× SGD", "× JAX", "compiling, s", title=title)
        for name, micro in cell["microseconds"].items():
            ratios = (f"{cell[key][name]:.2f}" if name in cell[key] else "" for key in ("over_sgd", "over_jax"))
            compiling = f"{cell['compile_seconds'][name]:.1f}" if name in cell["compile_seconds"] else ""
            table.add_row(name, f"{micro:.2f}", f"{cell['steps_per_second'][name]:,}", *ratios, compiling)
        Console().print(table)
        for name, reason in cell["missing"].items():
            Console().print(f"without {name}: {reason}", markup=False)
