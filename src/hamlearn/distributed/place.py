"""Where a process stands among all ranks, and whether all of them mean the same thing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from hamlearn.errors import ConfigError, HamlearnError, RankError, shown

T = TypeVar("T")


@dataclass
class Place:
    """One rank of a job. Without `torch.distributed`, the only one.

    Attributes:
        rank: Which one.
        ranks: How many there are.
        timeout: Seconds to wait for any other rank.
        failed: Why the ranks cannot continue together, once they cannot.
    """

    rank: int
    ranks: int
    timeout: float
    failed: str | None = None
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What ranks do together; if it fails on this one, nothing more can be done together."""
        if self.failed is not None:
            raise RankError(
                f"this pipeline has failed before ({self.failed}), and its ranks may be at different ticks: "
                "build a new one on every rank and load a checkpoint"
            )
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failed = self.failed or f"{type(error).__name__}: {error}"
            self.close()
            raise

    def group(self, purpose: str, device: str = "cpu") -> dist.ProcessGroup:
        """A group of all ranks for one purpose: this learner's own, so that it can be closed."""
        if purpose not in self._groups:
            backend, limit = "nccl" if device == "cuda" else "gloo", timedelta(seconds=self.timeout)
            make = partial(dist.new_group, list(range(self.ranks)), timeout=limit, backend=backend)
            self._groups[purpose] = self.guarded(make)
        return self._groups[purpose]

    def guarded(self, call: Callable[[], T]) -> T:
        """Do something together with all ranks; raises `RankError` if one of them does not."""
        try:
            return call()
        except RuntimeError as error:
            raise RankError(
                f"the {self.ranks} ranks did not meet within {self.timeout:g} s ({error}): one of "
                "them has died, hangs, or was never started. Look at the output of each rank"
            ) from error

    def gathered(self, own: Any) -> list[Any]:
        """A value of every rank."""
        if self.ranks == 1:
            return [own]
        found: list[Any] = [None] * self.ranks
        self.guarded(partial(dist.all_gather_object, found, own, group=self.group("control")))
        return found

    def agree(self, error: HamlearnError | None, mine: dict[str, Any] | None = None) -> None:
        """Raise on every rank if one of them has an error, or another configuration than the first one."""
        with self.together():
            found = self.gathered((None if error is None else (type(error), str(error)), mine or {}))
        if error is not None:
            raise error
        for rank, (problem, _) in enumerate(found):
            if problem is not None:
                kind, text = problem
                raise kind(f"rank {rank} cannot continue: {text}")
        for rank, (_, other) in enumerate(found):
            for key, value in found[0][1].items():
                if other[key] != value:
                    raise ConfigError(
                        f"rank {rank} has {key} = {shown(other[key])}, rank 0 has {shown(value)}: "
                        "start every rank with the same configuration and versions"
                    )

    def close(self) -> None:
        """Close this learner's groups."""
        while self._groups:
            _, group = self._groups.popitem()
            if dist.is_initialized():
                dist.destroy_process_group(group)


def find_place(timeout: float) -> Place:
    """This process's place among all ranks of the job, or alone."""
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise ConfigError(f"timeout={timeout!r} must be a number of seconds above 0")
    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size(), timeout)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1:
        raise ConfigError(
            f"{started} ranks were started (WORLD_SIZE), but torch.distributed is not initialized, so that every "
            'rank would learn alone: call torch.distributed.init_process_group("gloo") before this'
        )
    return Place(0, 1, timeout)
