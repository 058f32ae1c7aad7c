"""Training runs over several processes, each with one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from hamlearn.errors import HamlearnError
from hamlearn.experiments.comparison import Run, train_hl, train_sgd
from hamlearn.experiments.data import Dataset, load
from hamlearn.experiments.models import MODELS, Implementation
from hamlearn.experiments.reproduce.plan import Job


class WorkerError(HamlearnError, RuntimeError):
    """A process that trained ended before its work was done."""


def train_all(jobs: Sequence[Job], processes: int) -> Generator[tuple[Job, Run], None, None]:
    """Train, and yield each job with its run when it is finished; one process trains in this one."""
    parallel = Parallel(
        n_jobs=processes,
        return_as="generator_unordered",
        pre_dispatch="n_jobs",
        batch_size=1,
        # Seconds after which a process without work ends, also when this one was killed.
        idle_worker_timeout=10,
    )
    try:
        yield from parallel(delayed(train)(job) for job in jobs)
    except TerminatedWorkerError as error:
        raise WorkerError(
            f"a process that trained ended early ({error}). If memory ran out, use fewer --jobs."
        ) from error


def train(job: Job) -> tuple[Job, Run]:
    """Train as the job says."""
    with _one_thread():
        data = _load(job.data, job.source, job.dtype, job.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            module = MODELS[job.model].make(data.classes).to(getattr(torch, job.dtype))
        pairs = list(zip(data.inputs, data.targets, strict=True))
        if job.length is not None:
            pairs = [(u[:, : job.length], target) for u, target in pairs]
        if job.how == "SGD":
            return job, train_sgd(module, pairs, job.epochs, job.scenario)
        return job, train_hl(module, pairs, job.epochs, job.scenario, cast(Implementation, job.how))


@lru_cache
def _load(name: Any, source: str, dtype: str, seed: int) -> Dataset:
    return load(name, source, dtype=getattr(torch, dtype), seed=seed)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over several threads would depend on their number; and processes would slow each other down.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
