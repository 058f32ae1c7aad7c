"""Training runs over several processes, each with one thread, kept on disk when they are done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hamlearn.errors import ConfigError, HamlearnError
from hamlearn.experiments.comparison import Run, train_hl, train_sgd
from hamlearn.experiments.data import Dataset, load
from hamlearn.experiments.models import MODELS, Implementation
from hamlearn.experiments.reproduce.plan import Job
from hamlearn.record._whole import write_bytes


class WorkerError(HamlearnError, RuntimeError):
    """A process that trained ended before its work was done."""


@dataclass(frozen=True)
class Store:
    """A folder of finished runs: one safetensors file each, whole or absent, named by all that determines it."""

    folder: Path

    def path(self, job: Job) -> Path:
        """The file of this run."""
        return self.folder / f"{job.name}.safetensors"

    def has(self, job: Job) -> bool:
        """Whether the run is there; a truncated file is removed, so that the run is done again."""
        try:
            return self.path(job).is_file() and bool(self.read(job).weights)
        except SafetensorError:
            self.path(job).unlink()
            return False

    def write(self, job: Job, run: Run) -> None:
        """Keep the run; a crash leaves the whole file or none."""
        order = {"order": json.dumps(list(run.weights))}
        write_bytes(self.path(job), save({"loss": run.loss, "correct": run.correct, **run.weights}, order))

    def read(self, job: Job) -> Run:
        """The finished run."""
        with safe_open(self.path(job), "pt") as file:
            names = json.loads(file.metadata()["order"])
            weights = {name: file.get_tensor(name) for name in names}
            return Run(file.get_tensor("loss"), file.get_tensor("correct"), weights)


def train_all(jobs: Sequence[Job], store: Store, processes: int) -> Generator[Job, None, None]:
    """Train, keep the runs in `store`, and yield each job when it is finished; one process trains in this one."""
    parallel = Parallel(
        n_jobs=processes,
        return_as="generator_unordered",
        pre_dispatch="n_jobs",
        batch_size=1,
        # Seconds after which a process without work ends, also when this one was killed.
        idle_worker_timeout=10,
    )
    try:
        yield from parallel(delayed(_train_and_keep)(job, store) for job in jobs)
    except TerminatedWorkerError as error:
        raise WorkerError(
            f"a process that trained ended early ({error}). If memory ran out, use fewer --jobs. Finished runs "
            "are kept, and the same command continues from there."
        ) from error


def _train_and_keep(job: Job, store: Store) -> Job:
    with _one_thread():
        store.write(job, train(job))
    return job


def train(job: Job) -> Run:
    """Train as the job says."""
    data = _load(job.data, job.source, job.dtype, job.seed)
    if data.fingerprint != job.fingerprint:
        raise ConfigError(f"the data in {job.source} changed while they were in use: start again")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        module = MODELS[job.model].make(data.classes).to(getattr(torch, job.dtype))
    pairs = list(zip(data.inputs, data.targets, strict=True))
    if job.length is not None:
        pairs = [(u[:, : job.length], target) for u, target in pairs]
    if job.how == "SGD":
        return train_sgd(module, pairs, job.epochs, job.scenario)
    return train_hl(module, pairs, job.epochs, job.scenario, cast(Implementation, job.how))


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
