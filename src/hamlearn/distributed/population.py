"""A population over ranks: each rank a slice of the members, one report of them all."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hamlearn import _files
from hamlearn._claims import whole
from hamlearn._identity import identity
from hamlearn.distributed.place import find_place
from hamlearn.distributed.storage import PARTIAL, newest_of
from hamlearn.errors import CheckpointError, ConfigError, HamlearnError
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner, Population, PopulationReport
from hamlearn.state import Sample

FORMAT = "hamlearn-population-1"


class ShardedReport(NamedTuple):
    """One sample, as all members took it.

    Attributes:
        loss: The losses of all members of all ranks, on every rank; `None` without target.
        own: The report of this rank's members.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> population = hl.distributed.ShardedPopulation(make, [hl.Hyper()], seeds=[0, 1])
        >>> (report,) = population.run([hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1))])
        >>> report.loss.shape, len(report.own)
        (torch.Size([2]), 2)
    """

    loss: Tensor | None
    own: PopulationReport


class ShardedPopulation:
    """`Population` over the ranks of `torch.distributed`: each rank makes, runs and saves a slice of the members.

    Members do not touch each other, so that each ends, to the bit, where it would in a `Population` of its rank's
    slice, whichever rank it is on. Every method is to be called on every rank alike.

    Args:
        learner_factory: As for `Population`; called for this rank's members only.
        hyper: Hyper-parameter settings of all members.
        seeds: Seeds of the first weights of all members.
        timeout: Seconds after which a rank that waits for another one raises `RankError`.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> rates = [hl.Hyper.from_sgd(lr=lr) for lr in (0.01, 0.1)]
        >>> population = hl.distributed.ShardedPopulation(make, hyper=rates, seeds=[0, 1, 2])
        >>> stream = [hl.Sample(torch.randn(1, 2), target=torch.zeros(1, 1)) for _ in range(5)]
        >>> [report.loss.shape[0] for report in population.run(stream)], population.own
        ([6, 6, 6, 6, 6], range(0, 6))
    """

    def __init__(
        self,
        learner_factory: Callable[[Hyper], Learner],
        hyper: Sequence[Hyper],
        seeds: Sequence[int] = (0,),
        *,
        timeout: float = 60.0,
    ) -> None:
        self._place = place = find_place(None, timeout)
        pairs = list(itertools.product(hyper, seeds))
        self._identity = [[identity(vars(setting)), int(seed)] for setting, seed in pairs]
        size, larger = divmod(len(pairs), place.ranks)
        starts = [r * size + min(r, larger) for r in range(place.ranks + 1)]
        self.own = range(starts[place.rank], starts[place.rank + 1])
        problem: HamlearnError | None = None
        members: list[Learner] = []
        if len(pairs) < place.ranks:
            problem = ConfigError(
                f"{len(pairs)} members for {place.ranks} ranks: start fewer, or give more members"
            )
        else:
            try:
                for setting, seed in pairs[self.own.start : self.own.stop]:
                    torch.manual_seed(seed)
                    members.append(learner_factory(setting))
                self._population = Population.of(members)
            except HamlearnError as error:
                problem = error
        self._position = 0
        with self._together():
            problem = place.agree(problem, {"members": self._identity})
            if problem is not None:
                raise problem

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            # Closed connections tell the others.
            self._place.close()
            raise

    def __len__(self) -> int:
        return len(self._identity)

    @property
    def members(self) -> list[Learner]:
        """This rank's learners; `own` says which of all members they are."""
        return self._population.members

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken, whole blocks at a time."""
        return self._position

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["compiled", "eager"] = "compiled",
        *,
        resume: bool = False,
        block: int = 64,
    ) -> Iterator[ShardedReport]:
        """Take samples from `stream`, the same on every rank, and yield a report of all members for each.

        Args:
            stream: Any iterable of samples.
            max_steps: How many samples to take at most.
            engine: As for `Population.run`.
            resume: Pass over the samples that were taken before the loaded checkpoint was saved.
            block: Samples whose losses are told to the other ranks at one time.
        """
        if not isinstance(block, int) or block < 1:
            raise ConfigError(f"block={block!r} must be a whole number of samples, at least 1")
        if resume:
            stream = itertools.islice(stream, self._position, None)
        else:
            self._position = 0
        return self._run(stream, max_steps, engine, block)

    def _run(self, stream: Any, max_steps: int | None, engine: Any, block: int) -> Iterator[ShardedReport]:
        with self._together():
            reports = self._population.run(stream, max_steps, engine)
            while held := list(itertools.islice(reports, block)):
                self._position += len(held)
                losses = self._gathered([report.loss for report in held])
                for report, loss in zip(held, losses, strict=True):
                    yield ShardedReport(loss, report)

    def _gathered(self, own: list[Tensor | None]) -> list[Tensor | None]:
        """The losses of all ranks, sample by sample."""
        told = self._place.gathered([None if loss is None else loss.detach().cpu() for loss in own])
        if len({len(losses) for losses in told}) != 1:
            raise ConfigError("the ranks took different numbers of samples: give every rank the same stream")
        return [None if parts[0] is None else torch.cat(parts) for parts in zip(*told, strict=True)]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a new folder in `folder`: one file per member, complete or not there at all."""
        path = Path(folder) / f"tick-{self._position:012d}"
        partial = path.with_name(path.name + PARTIAL)
        problem: HamlearnError | None = None
        try:
            partial.mkdir(parents=True, exist_ok=True)
            for number, member in zip(self.own, self.members, strict=True):
                member.save(partial / f"member-{number}.safetensors")
            if self._place.rank == 0:
                about = {"format": FORMAT, "members": self._identity, "position": self._position}
                _files.replace(partial / "population.json", lambda file: _put(file, json.dumps(about).encode()))
        except OSError as error:
            problem = CheckpointError(f"cannot save {path}: {error}. Allow writing there, or save elsewhere")
        except CheckpointError as error:
            problem = error
        with self._together():
            problem = self._place.agree(problem, {"position": self._position})
            if problem is not None:
                raise problem
            if self._place.rank == 0:
                shutil.rmtree(path, ignore_errors=True)
                partial.rename(path)
            self._place.gathered(None)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint that any number of ranks wrote; each rank reads the files of its own members."""
        problem: HamlearnError | None = None
        try:
            found = newest_of(path)
            about = _about(found, self._identity)
            for number, member in zip(self.own, self.members, strict=True):
                member.load(found / f"member-{number}.safetensors")
            self._position = whole(about["position"], "the position in the stream")
        except (CheckpointError, ValueError) as error:
            problem = error if isinstance(error, CheckpointError) else CheckpointError(f"{path}: {error}")
        with self._together():
            problem = self._place.agree(problem, {})
            if problem is not None:
                raise problem


def _put(file: Any, data: bytes) -> None:
    file.write(data)


def _about(path: Path, members: list[Any]) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / "population.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no checkpoint of a population ({error}): give another one") from error
    if about.get("format") != FORMAT or about.get("members") != members:
        raise CheckpointError(
            f"{path} was saved from other members, or by another version: make the population with the same "
            "hyper-parameters and seeds, in the same order"
        )
    return about
