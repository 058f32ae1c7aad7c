"""Training runs over several processes, each with one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from hamlearn.errors import HamlearnError
from hamlearn.experiments.reproduce.job import Job
from hamlearn.experiments.reproduce.store import Store


class WorkerError(HamlearnError, RuntimeError):
    """A process that trained ended before its work was done."""


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
        yield from parallel(delayed(_train)(job, store) for job in jobs)
    except TerminatedWorkerError as error:
        raise WorkerError(
            f"a process that trained ended early ({error}). If memory ran out, use fewer --jobs. Finished runs "
            "are kept, and the same command continues from there."
        ) from error


def _train(job: Job, store: Store) -> Job:
    with _one_thread():
        store.write(job, job.run())
    return job


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over several threads would depend on their number; and processes would slow each other down.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
