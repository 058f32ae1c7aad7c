"""Peak memory and time of backpropagation against depth: plain, checkpointed, adjoint, and reversible.

One residual field of oscillating type, N steps of the midpoint rule, forward and backward, by every method:

- plain: the rule in ordinary PyTorch, no grid; autograd keeps all activations;
- checkpoint: the same with `torch.utils.checkpoint` over √N spans;
- reversible, and reversible in floats: `hamlearn.reversible.Midpoint`, exact and not;
- torchdiffeq adjoint: `odeint_adjoint` on the same equation over the same time, as many steps of its own
  explicit midpoint method (a step of ours advances time by τ/2).

Memory is what the allocator handed out at once beyond what was held before: `torch.cuda.max_memory_allocated`
on a GPU; on a CPU the running sum of the allocator's reports to the profiler, which is the same quantity. What
stays resident besides, since the C library does not give it back, is measured in processes of their own. Times
are medians of interleaved runs (a single run at 1,000 steps): wall clock, and time of this process, which other
processes on the machine disturb less (the sum over threads; for a GPU the launching alone). The error of a method
is the distance of its gradient to the one that autograd finds through the same discrete forward run, relative to
that gradient's norm.
"""

from __future__ import annotations

import datetime
import gc
import json
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import _report
from benchmarks._long_runs import measure_long_runs
from benchmarks._memory_views import draw, show
from benchmarks._resident import measure_resident
from hamlearn._base import machine
from hamlearn.reversible import Midpoint, ResidualField

TAU = 0.05
Net = Callable[[Tensor], Tensor]


def run(out: Path, quick: bool = False, device: str | None = None, long_runs: bool = True) -> dict[str, Any]:
    """Measure, print a table, and write a dated report and a figure.

    Args:
        out: the folder for the report and the figure; made if it is not there.
        quick: small sizes, for a look at whether it works.
        device: "cpu" or "cuda"; None: a GPU if there is one.
        long_runs: also train 10,000 layers, and over 1,000,000 tokens, and read resident memory with two settings
            of the allocator, in processes of their own (on the CPU).

    Returns:
        The report, as it is written to the JSON file.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if quick:
        width, batch, depths = 64, 32, [5, 20]
    elif where.type == "cuda":
        width, batch, depths = 4096, 512, [10, 100, 1000]
    else:
        width, batch, depths = 512, 128, [10, 100, 1000]
    torch.manual_seed(0)
    field = ResidualField(width).to(where)
    h0 = 0.3 * torch.randn(batch, width, device=where)
    rows = [row for depth in depths for row in _measure(field, h0, depth, repeats=5 if depth <= 100 else 1)]
    report = {
        "what": "memory and time of backpropagation through N midpoint steps",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(where),
        "sizes": {"width": width, "batch": batch, "tau": TAU, "dtype": "float32", "quick": quick},
        "rows": rows,
        "figures": _figures(rows, depths),
        "long_runs": measure_long_runs(quick) if long_runs else [],
        "resident": measure_resident(quick) if long_runs else [],
    }
    show(report)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{report['date'][:10]}-memory-{where.type}{'-quick' if quick else ''}"  # type: ignore[index]
    (out / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n")
    draw(report, out / f"{stem}.png")
    return report


def _methods(field: nn.Module, depth: int) -> dict[str, tuple[Net, Net]]:
    """Every method, and the stored run that judges its gradient."""

    def plain(h: Tensor) -> Tensor:
        h_prev = h
        for _ in range(depth):
            h_prev, h = h, h_prev + TAU * field(None, h)
        return h

    def midpoint(memory: str, exact: bool = True) -> Net:
        return Midpoint(field, depth, TAU, exact, memory, preserve_rng=False)

    methods: dict[str, tuple[Net, Net]] = {
        "plain": (plain, plain),
        "checkpoint": (midpoint("checkpoint", exact=False), plain),
        "reversible": (midpoint("reversible"), midpoint("stored")),
        "reversible, floats": (midpoint("reversible", exact=False), plain),
    }
    try:
        import torchdiffeq  # type: ignore[import-untyped]
    except ImportError:
        return methods

    class Rate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field

        def forward(self, t: Tensor, h: Tensor) -> Tensor:
            return self.field(None, h)

    rate = Rate()

    def solve(solver: Callable[..., Tensor]) -> Net:
        def net(h: Tensor) -> Tensor:
            # The two ends of the interval, and a step size: every step but the last state is dropped.
            t = torch.tensor([0.0, depth * TAU / 2], device=h.device)
            return solver(rate, h, t, method="midpoint", options={"step_size": TAU / 2})[-1]

        return net

    methods["torchdiffeq adjoint"] = solve(torchdiffeq.odeint_adjoint), solve(torchdiffeq.odeint)
    return methods


def _measure(field: nn.Module, h0: Tensor, depth: int, repeats: int) -> list[dict[str, Any]]:
    methods = _methods(field, depth)
    for net, _ in _methods(field, 2).values():
        _gradient(net, field, h0)  # warms up kernels and allocator
    _synchronize(h0)

    def finished(net: Net) -> Callable[[], None]:
        def once() -> None:
            _gradient(net, field, h0)
            _synchronize(h0)

        return once

    work = {name: finished(net) for name, (net, _) in methods.items()}
    times = _report.interleaved(work, repeats * list(work), 1, time.perf_counter, time.process_time)
    rows = []
    for name, (net, judge) in methods.items():
        found = _gradient(net, field, h0)
        true = found if judge is net else _gradient(judge, field, h0)
        rows.append(
            {
                "method": name,
                "depth": depth,
                "peak_bytes": _peak_bytes(lambda net=net: _gradient(net, field, h0), h0.device),  # type: ignore[misc]
                "seconds": statistics.median(times[name][0]),
                "cpu_seconds": statistics.median(times[name][1]),
                "gradient_error": float((found - true).norm() / true.norm()),
            }
        )
    return rows


def _gradient(net: Net, field: nn.Module, h0: Tensor) -> Tensor:
    """The gradient of a loss at h_N with respect to h_0 and all weights, as one vector."""
    h = h0.clone().requires_grad_()
    grads = torch.autograd.grad(net(h).square().mean(), [h, *field.parameters()])
    return torch.cat([g.flatten() for g in grads])


def _peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - held
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        work()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _figures(rows: list[dict[str, Any]], depths: list[int]) -> dict[str, float]:
    """The figures that the design asks for."""
    at = {(row["method"], row["depth"]): row for row in rows}
    ours, plain = "reversible", "plain"
    deep, shallow = max(depths), min(depths)
    figures = {
        "memory_deep_over_shallow": at[ours, deep]["peak_bytes"] / at[ours, shallow]["peak_bytes"],
        "memory_plain_over_ours_when_deep": at[plain, deep]["peak_bytes"] / at[ours, deep]["peak_bytes"],
    }
    for depth in depths:
        for clock in ("seconds", "cpu_seconds"):
            figures[f"{clock}_over_plain_{depth}"] = at[ours, depth][clock] / at[plain, depth][clock]
    return figures


def _machine(device: torch.device) -> dict[str, Any]:
    versions = machine.versions()
    try:
        versions["torchdiffeq"] = metadata.version("torchdiffeq")
    except metadata.PackageNotFoundError:
        versions["torchdiffeq"] = "not installed: left out (pip install torchdiffeq)"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine.processor()
    return {"device": device.type, "name": name, "threads": torch.get_num_threads(), "versions": versions}
