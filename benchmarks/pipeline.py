"""Samples a second of a chain of wide layers: two processes against one, and against PyTorch's own pipelines.

Eight layers of 2,048 with tanh, batch 32, mean squared error, float32, one thread per process:

- one process: `LocalLearner`, aligned, in two groups, every node computed by itself;
- two processes: `PipelineLearner` over gloo with the same groups, the same result bit-for-bit;
- `torch.distributed.pipelining` on the same two halves: GPipe and 1F1B with four micro-batches, then
  `torch.optim.SGD.step`.

The machine's own limit is measured too: both ranks make the ticks of their halves with messages that are there
already, at the same time and one after the other. At the same time they share the memory's bandwidth; that tick of
the slower rank is what a pipeline with free messages would take.

Rounds are interleaved, and medians are reported, with the share of a tick in which a rank waits for messages. A
batch of GPipe is learned from in one step; in a tick a new batch enters, and every group learns from another
one. Time is taken on the wall, and as time of the processor that each process used, its communication included,
which other processes on the machine disturb less: where those keep the cores busy, that is the one to go by.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks import _report
from benchmarks._silence import silence
from hamlearn.distributed import PipelineLearner
from hamlearn.distributed.messages import Peer
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner
from hamlearn.sample import Sample

LR = 1e-3
BATCH = 32
_MICRO = 4
mse = nn.functional.mse_loss


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure, print a table, and write a dated report into `out`.

    Args:
        out: Folder for the report; made if it is not there.
        quick: Few rounds of a narrow net, to see that all works.
    """
    width, rounds, ticks = (64, 3, 5) if quick else (2048, 9, 6)
    found: dict[str, Any] = _job(_ours, width, rounds, ticks) or {}
    for name in ("GPipe", "1F1B"):
        found[name] = (_job(_theirs, width, rounds, ticks, name) or {}).get("seconds")
    one, two = found["one process"], found["two processes"]
    waits, processor, silent = found.pop("waits"), found.pop("processor"), found.pop("silent")
    alone, halves = processor[0]["one process"], [rank["two processes"] for rank in processor]
    results = {
        "layers": 8,
        "width": width,
        "batch": BATCH,
        "milliseconds a batch": {n: None if s is None else round(1e3 * s, 2) for n, s in found.items()},
        "share of a tick spent waiting for messages": [round(share, 4) for share in waits],
        "processor milliseconds a batch": {
            "one process": round(1e3 * alone, 2),
            "two processes, by rank": [round(1e3 * half, 2) for half in halves],
        },
        "milliseconds of a rank's tick without communication": {
            name: [round(1e3 * rank[name], 2) for rank in silent] for name in silent[0]
        },
        "two processes / one": round(one / two, 3),
        "two processes / one, without communication": round(one / max(rank["at once"] for rank in silent), 3),
        "two processes / one, by the processor time of the busier rank": round(alone / max(halves), 3),
        "load average": os.getloadavg()[0],
        "reach": 1.85,
        "faster than": {n: round(found[n] / two, 3) for n in ("GPipe", "1F1B") if found[n] is not None},
    }
    _print(results)
    _report.write(out, "pipeline", results)
    return results


def _net(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(8)))


def _batch(width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, width, generator=generator), torch.randn(BATCH, width, generator=generator)


def _timed(work: Callable[[], object]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def _ours(width: int, rounds: int, ticks: int) -> dict[str, Any]:
    rank, hyper = dist.get_rank(), Hyper.from_sgd(lr=LR)
    u, target = _batch(width)
    sample = Sample(u, target)
    waited = 0.0
    wait = Peer.wait

    def counted(peer: Peer, work: Any, what: str) -> None:
        nonlocal waited
        begin = time.perf_counter()
        wait(peer, work, what)
        waited += time.perf_counter() - begin

    Peer.wait = counted  # type: ignore[method-assign, assignment]
    local = LocalLearner(_net(width), mse, hyper, groups=2, align=True, stacked=False) if rank == 0 else None
    pipeline = PipelineLearner(_net(width), mse, hyper, align=True)
    deaf = PipelineLearner(_net(width), mse, hyper, align=True)
    tick = silence(deaf, sample)

    def alone() -> None:
        if local is not None:
            list(local.run([sample] * ticks, max_steps=ticks))

    def together() -> None:
        list(pipeline.run([sample] * ticks, max_steps=ticks))

    times: dict[str, list[float]] = {"one process": [], "two processes": []}
    shares = []
    used: dict[str, list[float]] = {name: [] for name in times}
    silent: dict[str, list[float]] = {"at once": [], "one after the other": []}

    def ticking(turns: tuple[int, ...]) -> float:
        own = 0.0
        for turn in turns:
            dist.barrier()
            if turn in (rank, -1):
                begin = time.perf_counter()
                for _ in range(ticks):
                    tick()
                own = (time.perf_counter() - begin) / ticks
        dist.barrier()
        return own

    for index in range(rounds + 1):
        for name, work in (("one process", alone), ("two processes", together)):
            waited, begin = 0.0, time.process_time()
            seconds = _timed(work)
            if index:  # the first round fills the pipelines
                times[name].append(seconds / ticks)
                used[name].append((time.process_time() - begin) / ticks)
        shares += [waited / seconds] if index else []
        for name, turns in (("at once", (-1,)), ("one after the other", (0, 1))):
            own = ticking(turns)
            silent[name] += [own] if index else []
    told: list[Any] = [None, None]
    medians = [{n: statistics.median(x) for n, x in each.items()} for each in (used, silent)]
    dist.all_gather_object(told, (statistics.median(shares), *medians))
    waits, processor, silence_of = zip(*told, strict=True)
    found = {name: statistics.median(values) for name, values in times.items()}
    return found | {"waits": waits, "processor": processor, "silent": silence_of}


def _theirs(width: int, rounds: int, ticks: int, name: str) -> dict[str, Any]:
    rank = dist.get_rank()
    half = _net(width)[4 * rank : 4 * rank + 4]
    u, target = _batch(width)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    schedule: Any = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[name](stage, _MICRO, loss_fn=mse)
    optimizer = torch.optim.SGD(half.parameters(), lr=LR)

    def work() -> None:
        for _ in range(ticks):
            optimizer.zero_grad()
            schedule.step(u) if rank == 0 else schedule.step(target=target)
            optimizer.step()

    times = [_timed(work) / ticks for _ in range(rounds + 1)]
    return {"seconds": statistics.median(times[1:])}


def _job(work: Callable[..., dict[str, Any]], *args: Any, limit: float = 600.0) -> dict[str, Any] | None:
    """What rank 0 of two found; `None` where the job did not end in time, which is said."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, port, answers, work, args)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        answer: dict[str, Any] | None = answers.get(timeout=limit)
    except queue.Empty:
        Console().print(f"{work.__name__}{args} did not end within {limit:g} s")
        answer = None
    for process in ranks:
        process.join(10)
        if process.is_alive():
            process.kill()
    return answer


def _rank(rank: int, port: int, answers: Any, work: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = work(*args)
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def _print(results: dict[str, Any]) -> None:
    table = Table(title=f"8 layers of {results['width']}, batch {BATCH}, one thread per process")
    table.add_column("way")
    table.add_column("ms a batch", justify="right")
    for name, milliseconds in results["milliseconds a batch"].items():
        table.add_row(name, "did not end" if milliseconds is None else f"{milliseconds:.2f}")
    console = Console()
    console.print(table)
    console.print(f"two processes / one: {results['two processes / one']} (reach {results['reach']})")
    console.print(f"without communication: {results['two processes / one, without communication']}")
    by_processor = results["two processes / one, by the processor time of the busier rank"]
    console.print(f"by processor time: {by_processor}; load average {results['load average']:.1f}")
    console.print(f"waiting: {results['share of a tick spent waiting for messages']} of a tick, by rank")
