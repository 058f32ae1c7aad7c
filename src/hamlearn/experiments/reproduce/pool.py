"""Jobs over processes, each with one thread: prompt to stop, and gone when their parent is."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Generator, Iterator
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from hamlearn.errors import HamlearnError
from hamlearn.experiments.reproduce.job import Job
from hamlearn.experiments.reproduce.store import Store


class WorkerError(HamlearnError, RuntimeError):
    """A process that trained ended before its work was done."""


def work_off(jobs: list[Job], store: Store, processes: int) -> Generator[Job, None, None]:
    """Do the jobs, keep their runs in `store`, and yield each job as it is finished.

    With one process they are done here; with more, by others that live until the last job is done, the caller
    stops, or this process dies, whichever comes first.
    """
    if processes == 1 or len(jobs) < 2:
        with _one_thread():
            for job in jobs:
                store.write(job, job.run())
                yield job
        return
    team = _start(min(processes, len(jobs)), store)
    try:
        yield from _hand_out(jobs, team)
    finally:
        for process in team.values():
            process.terminate()
        for process in team.values():
            process.join()


def _hand_out(jobs: list[Job], team: dict[Connection, Any]) -> Iterator[Job]:
    waiting = list(reversed(jobs))
    busy: dict[Connection, Job] = {}
    idle = list(team)
    while waiting or busy:
        while waiting and idle:
            channel, job = idle.pop(), waiting.pop()
            busy[channel] = job
            with _losses_named(job, team[channel]):
                channel.send(job)
        for ready in connection.wait(list(busy)):
            channel = cast(Connection, ready)
            job = busy.pop(channel)
            with _losses_named(job, team[channel]):
                failure = channel.recv()
            if failure is not None:
                raise failure
            idle.append(channel)
            yield job


@contextlib.contextmanager
def _losses_named(job: Job, process: Any) -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        process.join()
        raise WorkerError(
            f"the process that was to train {job.name} ended with code {process.exitcode}: if memory ran out use "
            "fewer --jobs; what is finished is kept, and the same command goes on from there"
        ) from None


def _start(count: int, store: Store) -> dict[Connection, Any]:
    context = multiprocessing.get_context("spawn")
    team: dict[Connection, Any] = {}
    with _interrupts_held():
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, store), daemon=True)
            process.start()
            there.close()
            team[here] = process
    return team


def _work(channel: Connection, store: Store) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with _one_thread(), contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = channel.recv()
            try:
                store.write(job, job.run())
                channel.send(None)
            except Exception as error:
                channel.send(_portable(error))


def _portable(error: Exception) -> Exception:
    if isinstance(error, HamlearnError | OSError):
        return error
    return WorkerError("".join(traceback.format_exception(error)))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over several threads would depend on how many there are; and processes would crowd each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    # Ctrl-C reaches every process of a terminal. Those started here inherit the held signal and never see it:
    # their parent, which does see it, ends them.
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started with the first process, the tracker would let the signal go again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
