"""Where a process stands among all: its pipeline, its neighbours, and whether all ranks mean the same thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hamlearn.distributed.links import COSTATE, STATE, Peer
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
    """

    rank: int
    replica: int
    pipelines: list[list[int]]
    timeout: float
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    _peers: list[Peer] = field(default_factory=list)

    @property
    def members(self) -> list[int]:
        """The ranks of this pipeline among all ranks of the job, in order."""
        return self.pipelines[self.replica]

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return len(self.members)

    @property
    def last(self) -> bool:
        """Whether this is the rank that targets enter at."""
        return self.rank == self.ranks - 1

    def group(self, purpose: str, device: str = "cpu") -> dist.ProcessGroup:
        """A group of the pipeline's ranks for one purpose; this learner's own, so that it can be closed."""
        if purpose not in self._groups:
            backend, limit = "nccl" if device == "cuda" else "gloo", timedelta(seconds=self.timeout)
            # Every rank of the job takes part in the making of every group.
            groups = [
                self.guarded(lambda ranks=ranks: dist.new_group(ranks, timeout=limit, backend=backend))  # type: ignore[misc]
                for ranks in self.pipelines
            ]
            self._groups[purpose] = groups[self.replica]
        return self._groups[purpose]

    def _job(self, everyone: list[int]) -> dist.ProcessGroup:
        if "job" not in self._groups:
            limit = timedelta(seconds=self.timeout)
            self._groups["job"] = self.guarded(lambda: dist.new_group(everyone, timeout=limit, backend="gloo"))
        return self._groups["job"]

    def twins(self, device: str) -> dist.ProcessGroup:
        """The ranks that hold the same part in all replicas."""
        if "twins" not in self._groups:
            backend, limit = "nccl" if device == "cuda" else "gloo", timedelta(seconds=self.timeout)
            groups = [
                self.guarded(lambda ranks=ranks: dist.new_group(ranks, timeout=limit, backend=backend))  # type: ignore[misc]
                for ranks in map(list, zip(*self.pipelines, strict=True))
            ]
            self._groups["twins"] = groups[self.rank]
        return self._groups["twins"]

    def average(self, tensors: list[Tensor]) -> None:
        """Put the mean over all replicas in the place of each tensor."""
        if not tensors:
            return
        group = self.twins(tensors[0].device.type)
        for tensor in tensors:
            self.guarded(lambda tensor=tensor: dist.all_reduce(tensor, group=group))  # type: ignore[misc]
            tensor.div_(len(self.pipelines))

    def peer(self, rank: int, device: str) -> Peer | None:
        """A neighbour in the pipeline; `None` beyond its ends."""
        if not 0 <= rank < self.ranks:
            return None
        control = self.group("control")
        data = dict.fromkeys((STATE, COSTATE), control)
        if device != "cpu":
            # NCCL makes the messages between two ranks of one group wait for each other, whichever way they go.
            data = {STATE: self.group("states", device), COSTATE: self.group("costates", device)}
        self._peers.append(Peer(self.members[rank], rank, control, data, self.timeout))
        return self._peers[-1]

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
        group = self.group("control") if len(self.pipelines) == 1 else self._job(everyone)
        self.guarded(lambda: dist.all_gather_object(told, own, group=group))
        return told

    def agree(self, error: HamlearnError | None, mine: dict[str, Any]) -> HamlearnError | None:
        """An error for this rank where one of them has one, or means something else than the others."""
        told = self.gathered((None if error is None else str(error), mine))
        if error is not None:
            return error
        for rank, (problem, _) in enumerate(told):
            if problem is not None:
                return ConfigError(f"rank {rank} cannot go on: {problem}")
        for rank, (_, other) in enumerate(told):
            for key, value in told[0][1].items():
                if other[key] != value:
                    return ConfigError(
                        f"rank {rank} has {key} = {shown(other[key])}, rank 0 has {shown(value)}: "
                        "start every rank with the same configuration and versions"
                    )
        return None

    def number_from_first(self, number: int) -> int:
        """What the first rank of the pipeline says, on every rank; the smallest such number of all replicas."""
        told = torch.tensor([number])
        if self.ranks > 1:
            group = self.group("control")
            self.guarded(lambda: dist.broadcast(told, self.members[0], group=group))
        if len(self.pipelines) > 1:
            twins = self.twins("cpu")
            self.guarded(lambda: dist.all_reduce(told, dist.ReduceOp.MIN, group=twins))
        return int(told)

    def close(self, but: str | None = None) -> None:
        """Close this learner's groups, so that neighbours who wait for this rank learn of it at once.

        Args:
            but: The purpose of a group that is kept.
        """
        for peer in self._peers:
            peer.close()
        for purpose in [purpose for purpose in self._groups if purpose != but]:
            group = self._groups.pop(purpose)
            if dist.is_initialized():
                dist.destroy_process_group(group)


def find_place(mesh: DeviceMesh | None, timeout: float) -> Place:
    """This process's place: in `mesh`, or among all ranks of the job, or alone."""
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise ConfigError(f"timeout={timeout!r} must be a number of seconds above 0")
    if not (dist.is_available() and dist.is_initialized()):
        if mesh is not None:
            raise ConfigError("mesh is given, but torch.distributed is not initialized: start with torchrun")
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
