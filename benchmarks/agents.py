"""Agents: learners with a stream of their own each, all in one loop; agent-steps a second against their number.

Two workloads of `hamlearn bench stream`: the MLP for Iris and the RNN of 30 neurons, float32, one sample a step,
each agent with its own weights, inputs and targets. On the CPU up to 10,000 agents; on a GPU up to 4,096 RNNs and
16,384 MLPs, and `vmap` of a `lax.scan` of JAX over as many, where JAX is installed. A run goes over all samples
of all streams and ends with the losses of its last step; *loop* is the compiled loop alone over samples that lie
ready.

Run as a module, it needs nothing but PyTorch: `python -m benchmarks.agents --device cuda --out DIR`.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks import _report
from benchmarks._stream_workloads import MOMENTUM, WORKLOADS, Workload
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner, Population
from hamlearn.streams import Stream, from_dataset

RNN, MLP = WORKLOADS[0], WORKLOADS[1]
GOAL = 9.0
"""Microseconds for a step of all of 1,024 RNNs on an H200, to reach."""
CASES: dict[str, list[tuple[Workload, int, int, int]]] = {
    "cpu": [
        *((MLP, agents, 512, 256) for agents in (1, 16, 256, 2_048, 10_000)),
        *((RNN, agents, 512, 256) for agents in (1, 16, 256, 2_048)),
    ],
    "cuda": [
        (RNN, 1_024, 65_536, 32_768),
        (MLP, 16_384, 8_192, 4_096),
        *((RNN, agents, 65_536, 32_768) for agents in (1, 64, 264)),
        (MLP, 1_024, 65_536, 32_768),
        (RNN, 4_096, 16_384, 8_192),
    ],
}
"""Workload, agents, samples of each, and steps taken at a time. On a GPU what matters most comes first; on a CPU
the small ones do, since memory that a large one has freed would be taken for that of the next."""
QUICK = [(MLP, 3, 40, 16), (RNN, 3, 40, 16)]


def run(out: Path, quick: bool = False, device: str | None = None) -> dict[str, Any]:
    """Measure, print a table, draw a figure, and write a dated report."""
    where = device or "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(min(os.cpu_count() or 1, 4))
    try:
        found: dict[str, Any] = {"device": where, "threads": torch.get_num_threads(), "rows": []}
        name = "agents" if where == "cpu" else f"agents-{where}"
        for case in QUICK if quick else CASES[where]:
            row = _row(*case, where, rounds=1 if quick else 3)
            _show(row)
            # Stopped at any moment, it has kept what it found.
            found["rows"] = sorted([*found["rows"], row], key=lambda row: (row["workload"], row["agents"]))
            path = _report.write(out, name, found, rerun=f"python -m benchmarks.agents --device {where}")
            _draw(found, path.with_suffix(".png"))
    finally:
        torch.set_num_threads(threads)
    return found


def _row(workload: Workload, agents: int, steps: int, chunk: int, device: str, rounds: int) -> dict[str, Any]:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    u, target = _data(workload, agents, steps, device)
    held = _resident(device)
    population = Population(
        lambda hyper: _learner(workload, hyper, device),
        [Hyper.from_sgd(lr=workload.lr, momentum=MOMENTUM)],
        range(agents),
        streams=_streams(u, target, agents, steps),
    )
    made = _resident(device)
    first, _ = _pass(population, chunk)
    times, busy = zip(*(_pass(population, chunk) for _ in range(rounds)), strict=True)
    row = {
        "workload": workload.name,
        "agents": agents,
        "samples of each": steps,
        "steps at a time": chunk,
        "microseconds a step of all": statistics.median(times) / steps * 1e6,
        "agent-steps a second": agents * steps / statistics.median(times),
        "agent-steps a second of processor time": agents * steps / statistics.median(busy),
        "first pass, seconds": first,
        "bytes an agent, as made": (made - held) / agents,
        "bytes an agent, running": (_resident(device, peak=True) - held) / agents,
        "bytes of weights and costates": 2 * sum(w.nbytes for w in population.member(0).network.parameters()),
        "loop alone, microseconds": _loop_alone(population, chunk, rounds),
    }
    if device == "cuda" and (workload, agents) == (RNN, 1_024):
        row["to reach, microseconds"] = GOAL
    if device == "cuda" and importlib.util.find_spec("jax") is not None:
        from benchmarks import _jax_agents

        row["JAX vmap of scan, microseconds"] = _jax_agents.measure(
            workload, agents, u, target, min(chunk, 1024), rounds
        )
    return row


def _learner(workload: Workload, hyper: Hyper, device: str) -> Learner:
    return Learner(workload.network().to(device), workload.loss, hyper, credit=workload.credit)


def _data(workload: Workload, agents: int, steps: int, device: str) -> tuple[Tensor, Tensor]:
    """One long row of samples; each agent reads a stretch of its own."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(steps + _apart(agents) * agents, workload.inputs, generator=generator)
    if workload.classes is None:
        target = u.roll(1, 0)[:, :1].clone()
    else:
        target = (u @ torch.randn(workload.inputs, workload.classes, generator=generator)).argmax(1)
    return u.to(device), target.to(device)


def _apart(agents: int) -> int:
    return max(1, 65_536 // agents)


def _streams(u: Tensor, target: Tensor, agents: int, steps: int) -> list[Stream]:
    starts = [number * _apart(agents) for number in range(agents)]
    return [from_dataset(TensorDataset(u[k : k + steps], target[k : k + steps])) for k in starts]


def _pass(population: Population, chunk: int) -> tuple[float, float]:
    """Seconds on the wall, and of the processor, which others on the machine disturb less."""
    begun, spent = time.perf_counter(), time.process_time()
    report = None
    for report in population.run(chunk=chunk):  # noqa: B007 (the last one is looked at)
        pass
    assert report is not None
    assert bool(report.loss.isfinite().all())
    return time.perf_counter() - begun, time.process_time() - spent


def _loop_alone(population: Population, chunk: int, rounds: int) -> float:
    """Microseconds a step of the compiled loop, called again with what it was called with last."""
    made = [step for kept in population._runner.engine.steps._made.values() for step in kept]
    loop, calls = made[0].loop, []

    def noted(*given: Any) -> Any:
        calls.append(given)
        return loop(*given)

    made[0].loop = noted
    next(iter(population.run(chunk=chunk)))
    made[0].loop = loop
    given, times = calls[0], []
    for _ in range(rounds + 1):
        _wait()
        begun = time.perf_counter()
        loop(*given)
        _wait()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:]) / given[0] * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _resident(device: str, peak: bool = False) -> int:
    """Bytes that the process holds; on a GPU, those of its tensors, now or at their peak."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _show(row: dict[str, Any]) -> None:
    jax = row.get("JAX vmap of scan, microseconds")
    beside = "" if jax is None else f"; JAX {jax:.2f} µs"
    print(
        f"{row['agents']:>6,} × {row['workload']}: {row['microseconds a step of all']:.2f} µs a step of all, loop "
        f"alone {row['loop alone, microseconds']:.2f}{beside}; {row['agent-steps a second']:,.0f} agent-steps a "
        f"second, {row['agent-steps a second of processor time']:,.0f} of processor time; "
        f"{row['bytes an agent, running']:,.0f} bytes an agent",
        flush=True,
    )


def _draw(found: dict[str, Any], path: Path) -> None:
    """Agent-steps a second against the number of agents."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for workload, color in ((RNN, "#0072b2"), (MLP, "#d55e00")):
        rows = [row for row in found["rows"] if row["workload"] == workload.name]
        agents = [row["agents"] for row in rows]
        axes.plot(agents, [row["agent-steps a second"] for row in rows], "o-", color=color, label=workload.name)
        alone = [row["agents"] / row["loop alone, microseconds"] * 1e6 for row in rows]
        axes.plot(agents, alone, ":", color=color, label="the loop alone")
        beside = [(row["agents"], row.get("JAX vmap of scan, microseconds")) for row in rows]
        if any(time is not None for _, time in beside):
            known = [(n, n / time * 1e6) for n, time in beside if time is not None]
            axes.plot(*zip(*known, strict=True), "x--", color=color, label="JAX, vmap of scan")
    axes.set(xscale="log", yscale="log", xlabel="agents", ylabel="agent-steps a second")
    axes.set_title(f"Agents with streams of their own, {found['device']}")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Agents with streams of their own, all in one loop.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    run(given.out, given.quick, given.device)


if __name__ == "__main__":
    _main()
