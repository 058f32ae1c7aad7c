"""Where a process stands among all: its pipeline, its replica, and whether all ranks mean the same thing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hamlearn.errors import ConfigError, HamlearnError, RankError, shown

PIPELINE, DATA = "pipeline", "data"
T = TypeVar("T")


@dataclass
class Place:
    """One rank of a pipeline. Without `torch.distributed`, the only one.

    Attributes:
        rank: Place in the pipeline.
        replica: Which of several equal pipelines this is.
        pipelines: The ranks of each pipeline among all ranks of the job, in order.
        timeout: Seconds to wait for any other rank.
        failed: Why the ranks cannot go on together, once they cannot.
    """

    rank: int
    replica: int
    pipelines: list[list[int]]
    timeout: float
    failed: str | None = None
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    @property
    def members(self) -> list[int]:
        """The ranks of this pipeline among all ranks of the job, in order."""
        return self.pipelines[self.replica]

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return len(self.members)

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
        """A group of the pipeline's ranks for one purpose."""
        return self._group(purpose, self.pipelines, device)

    def _group(self, purpose: str, every: list[list[int]], device: str = "cpu") -> dist.ProcessGroup:
        """The one of these groups that this rank is in; they are this learner's own, and can be closed."""
        if purpose not in self._groups:
            backend, limit = "nccl" if device == "cuda" else "gloo", timedelta(seconds=self.timeout)
            # Every rank of the job takes part in the making of every group.
            groups = [
                self.guarded(partial(dist.new_group, ranks, timeout=limit, backend=backend)) for ranks in every
            ]
            self._groups[purpose] = next(
                group for group, ranks in zip(groups, every, strict=True) if dist.get_rank() in ranks
            )
        return self._groups[purpose]

    def _twins(self, device: str) -> dist.ProcessGroup:
        """The ranks that hold the same part in all replicas."""
        return self._group(f"twins on {device}", list(map(list, zip(*self.pipelines, strict=True))), device)

    def average(self, tensors: list[Tensor]) -> None:
        """Put the mean over all replicas in the place of each tensor."""
        for tensor in tensors:
            group = self._twins(tensor.device.type)
            self.guarded(partial(dist.all_reduce, tensor, group=group))
            tensor.div_(len(self.pipelines))

    def guarded(self, call: Callable[[], T]) -> T:
        """Do something together with all ranks; a named error where one of them does not."""
        try:
            return call()
        except RuntimeError as error:
            raise RankError(
                f"the {self.ranks} ranks of the pipeline did not meet within {self.timeout:g} s ({error}): one of "
                "them has died, hangs, or was never started. Look at the output of each rank"
            ) from error

    def gathered(self, own: Any) -> list[Any]:
        """What every rank says, those of other replicas too."""
        everyone = [rank for ranks in self.pipelines for rank in ranks]
        if len(everyone) == 1:
            return [own]
        told: list[Any] = [None] * len(everyone)
        group = self.group("control") if len(self.pipelines) == 1 else self._group("job", [everyone])
        self.guarded(partial(dist.all_gather_object, told, own, group=group))
        return told

    def agree(self, error: HamlearnError | None, mine: dict[str, Any] | None = None) -> None:
        """Raise on every rank if one of them has an error, or means something else than the first one."""
        with self.together():
            told = self.gathered((None if error is None else (type(error), str(error)), mine or {}))
        if error is not None:
            raise error
        for rank, (problem, _) in enumerate(told):
            if problem is not None:
                kind, text = problem
                raise kind(f"rank {rank} cannot go on: {text}")
        for rank, (_, other) in enumerate(told):
            for key, value in told[0][1].items():
                if other[key] != value:
                    raise ConfigError(
                        f"rank {rank} has {key} = {shown(other[key])}, rank 0 has {shown(value)}: "
                        "start every rank with the same configuration and versions"
                    )

    def number_from_first(self, number: int) -> int:
        """What the first rank of the pipeline says, on every rank; the smallest such number of all replicas."""
        told = torch.tensor([number])
        if self.ranks > 1:
            self.guarded(partial(dist.broadcast, told, self.members[0], group=self.group("control")))
        if len(self.pipelines) > 1:
            self.guarded(partial(dist.all_reduce, told, dist.ReduceOp.MIN, group=self._twins("cpu")))
        return int(told)

    def close(self) -> None:
        """Close this learner's groups."""
        while self._groups:
            _, group = self._groups.popitem()
            if dist.is_initialized():
                dist.destroy_process_group(group)


def find_place(mesh: DeviceMesh | None, timeout: float) -> Place:
    """This process's place: in `mesh`, or among all ranks of the job, or alone."""
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise ConfigError(f"timeout={timeout!r} must be a number of seconds above 0")
    if not (dist.is_available() and dist.is_initialized()):
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if mesh is not None or started > 1:
            cause = "mesh is given" if mesh is not None else f"{started} ranks were started (WORLD_SIZE)"
            raise ConfigError(
                f"{cause}, but torch.distributed is not initialized, so that every rank would learn alone: start "
                'with torchrun, and call torch.distributed.init_process_group("gloo") before this'
            )
        return Place(0, 0, [[0]], timeout)
    if mesh is None:
        return Place(dist.get_rank(), 0, [list(range(dist.get_world_size()))], timeout)
    names = mesh.mesh_dim_names or ()
    if PIPELINE not in names or set(names) - {PIPELINE, DATA}:
        raise ConfigError(
            f"the mesh has the dimensions {names}: give one named {PIPELINE!r} and, for replicas, one named "
            f"{DATA!r}, as in init_device_mesh('cpu', (2, 4), mesh_dim_names=({DATA!r}, {PIPELINE!r}))"
        )
    if mesh.mesh.numel() != dist.get_world_size():
        raise ConfigError(
            f"the mesh of shape {tuple(mesh.mesh.shape)} has {mesh.mesh.numel()} places, but the job has "
            f"{dist.get_world_size()} ranks: every rank needs one place, and every place a rank"
        )
    grid = mesh.mesh if names[-1] == PIPELINE else mesh.mesh.T
    pipelines: list[list[int]] = grid.reshape(-1, grid.shape[-1]).tolist()
    replica = next(k for k, ranks in enumerate(pipelines) if dist.get_rank() in ranks)
    return Place(pipelines[replica].index(dist.get_rank()), replica, pipelines, timeout)
