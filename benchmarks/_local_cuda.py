"""Ticks of local layers on a GPU against BackPropagation of the same net.

Chains of equal layers with tanh, mean squared error, momentum 0.9, float32, one sample at a time. All on one
GPU in one process:

- BackPropagation, eager; as one CUDA graph of forward, backward and fused SGD; and compiled by `torch.compile`;
- eager local ticks, unaligned and aligned;
- fused ticks: the graph of 32 of them alone (kernel), and `run(engine="compiled")` with its stream and reports.

The bytes that a tick has to move, weights and costates read once and written once, are given as a share of what a
copy between two buffers of the GPU moves in the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.engine.fused import FusedRunner
from hamlearn.engine.fused.tick import AT_ONCE
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner, Residual
from hamlearn.sample import Sample

LR, MOMENTUM = 1e-4, 0.9
_ROUNDS = 5


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """The copy bandwidth and all rows so far, after each row: a run that is stopped leaves the rows so far."""
    large, deep = {"depth": 64, "width": 1024}, {"depth": 256, "width": 256}
    cases: list[dict[str, Any]] = [{"depth": 4, "width": 64}]
    if not quick:
        cases = [large, deep]
        cases += [{"depth": depth, "width": 256} for depth in (16, 64, 1024)]
        # The time that `torch.compile` takes grows with the depth, to minutes: only these have it.
        cases += [{"depth": depth, "width": 1024, "compiles": True} for depth in (4, 16)]
        cases += [{**large, "residual": True}]
    copied = copy_bandwidth()
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows.append(_row(**case, copied=copied))
        torch.cuda.empty_cache()
        order = sorted(rows, key=lambda row: (row["residual"], -row["width"], row["depth"]))
        yield {"copy bytes a second": copied, "rows": order}


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, read and written ones counted."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    seconds = _on_gpu(lambda: target.copy_(source))
    return 2 * source.numel() * source.element_size() / seconds


def _row(
    depth: int,
    width: int,
    residual: bool = False,
    compiles: bool = False,
    copied: float = 1.0,
) -> dict[str, Any]:
    torch.manual_seed(0)
    u, target = torch.randn(2, 256, 1, width, device="cuda")
    found: dict[str, float] = {}
    module = _net(depth, width, residual)
    found["BackPropagation, eager"] = _on_host(_backprop(module, u[0], target[0]))
    found["BackPropagation, CUDA graph"] = _on_gpu(graphed(_backprop(module, u[0], target[0])))
    if compiles:
        compiled: Any = torch.compile(module)
        found["BackPropagation, compiled"] = _on_host(_backprop(compiled, u[0], target[0]))
    bytes_moved = 4 * 4 * depth * width * width
    shares = {}
    for name, align in (("unaligned", False), ("aligned", True)):
        hyper = Hyper.from_sgd(LR, MOMENTUM)
        learner = LocalLearner(module, nn.functional.mse_loss, hyper, align=align)
        sample = Sample(u[0], target[0])
        found[f"{name}, eager"] = _on_host(partial(learner.step, sample))
        learner.reset()
        samples = [Sample(*pair) for pair in zip(u, target, strict=True)]
        seconds = _on_host(partial(_all, learner, samples), repeat=1)
        found[f"{name}, engine"] = seconds / len(samples)
        runner = learner._blocks
        assert isinstance(runner, FusedRunner)
        assert runner._ticks is not None
        found[f"{name}, kernel"] = _on_gpu(runner._ticks._graphs[AT_ONCE].replay) / AT_ONCE
        shares[name] = round(bytes_moved / found[f"{name}, kernel"] / copied, 3)
    return {
        "depth": depth,
        "width": width,
        "residual": residual,
        "microseconds": {name: round(1e6 * seconds, 1) for name, seconds in found.items()},
        "bytes": bytes_moved,
        "share of copy bandwidth": shares,
    }


def _net(depth: int, width: int, residual: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*map(Residual, layers) if residual else layers).cuda()


def _backprop(module: Any, u: Tensor, target: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.mse_loss(module(u), target).backward()
        optimizer.step()

    return step


def graphed(step: Callable[[], object]) -> Callable[[], object]:
    """A step as one CUDA graph, recorded after three that were taken."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _all(learner: LocalLearner, samples: list[Sample]) -> None:
    for _ in learner.run(samples, max_steps=len(samples), engine="compiled", chunk=len(samples)):
        pass


def _on_host(step: Callable[[], object], repeat: int = 10) -> float:
    """Seconds on the wall, until the GPU is done."""
    for _ in range(3):
        step()
    times = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / repeat)
    return statistics.median(times)


def _on_gpu(step: Callable[[], object]) -> float:
    """Seconds between two events on the GPU."""
    for _ in range(3):
        step()
    times = []
    for _ in range(2 * _ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return statistics.median(times)
