"""Starts ranks as processes of their own and gathers what each of them returned or raised."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# One server process imports PyTorch once; the ranks are forked from it, each within milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["hamlearn.distributed", "tests.distributed.ranks", "tests.local.cases"])


@dataclass
class Outcome:
    """What became of one rank."""

    value: Any = None
    error: str | None = None
    message: str = ""
    seconds: float = 0.0
    exitcode: int | None = None


def launch(
    work: Callable[..., Any], ranks: int, folder: Path, *args: Any, limit: float = 60.0, lost: int | None = None
) -> list[Outcome]:
    """Run `work(*args)` on so many ranks of one job; what is still there after `limit` seconds is killed.

    A rank that is to be `lost` is not waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = f"tcp://127.0.0.1:{free_port()}"
    processes = [
        _context.Process(target=_rank, args=(rank, ranks, place, folder, work, args)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + limit
    outcomes = []
    for rank, process in enumerate(processes):
        if rank != lost:
            process.join(max(0.0, end - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()
    for rank, process in enumerate(processes):
        path = folder / f"outcome-{rank}.pt"
        outcome = torch.load(path, weights_only=False) if path.exists() else Outcome()
        outcome.exitcode = process.exitcode
        outcomes.append(outcome)
    return outcomes


def values(work: Callable[..., Any], ranks: int, folder: Path, *args: Any) -> list[Any]:
    """What every rank returned; raises where one did not return."""
    outcomes = launch(work, ranks, folder, *args)
    assert [outcome.exitcode for outcome in outcomes] == [0] * ranks, "\n".join(o.message for o in outcomes)
    return [outcome.value for outcome in outcomes]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _rank(
    rank: int, ranks: int, place: str, folder: Path, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    started, outcome = time.monotonic(), Outcome()
    try:
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks)
        outcome.value = work(*args)
        # Whoever is done first keeps its connections open until the others have what it sent.
        dist.barrier()
    except BaseException as error:
        outcome.error, outcome.message = type(error).__name__, str(error)
        traceback.print_exc()
    outcome.seconds = time.monotonic() - started
    path = folder / f"outcome-{rank}.pt"
    torch.save(outcome, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    # The groups of a job whose ranks have failed cannot be taken down in good order.
    os._exit(0 if outcome.error is None else 1)
