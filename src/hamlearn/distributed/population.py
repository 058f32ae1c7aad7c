"""A population over ranks: each rank a slice of the members, one report of them all."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hamlearn.distributed.folders import newest_of, write_together
from hamlearn.distributed.place import find_place
from hamlearn.errors import CheckpointError, ConfigError, HamlearnError
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner, Population, PopulationReport
from hamlearn.learner.population import seeded
from hamlearn.sample import Sample
from hamlearn.state import checkpoint, files
from hamlearn.state.identity import identity
from hamlearn.state.saving import take_up

FORMAT = "hamlearn-population-1"


class ShardedReport(NamedTuple):
    """One step, as all members took it.

    Attributes:
        loss: The losses of all members of all ranks, on every rank, not a number for one that has none; `None`
            where no member has one.
        own: The report of this rank's members.
        took: Which of all members took a sample.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> population = hl.distributed.ShardedPopulation(make, [hl.Hyper()], seeds=[0, 1])
        >>> (report,) = population.run([hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1))])
        >>> report.loss.shape, len(report.own), report.took
        (torch.Size([2]), 2, [True, True])
    """

    loss: Tensor | None
    own: PopulationReport
    took: list[bool]


class ShardedPopulation:
    """`Population` over the ranks of `torch.distributed`: each rank makes, runs and saves a slice of the members.

    Members do not touch each other, so that each ends bit-for-bit where it would in a `Population` of its rank's
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
        self._place = place = find_place(timeout)
        pairs = list(itertools.product(hyper, seeds))
        self._identity = [[identity(vars(setting)), int(seed)] for setting, seed in pairs]
        self._position = 0
        size, larger = divmod(len(pairs), place.ranks)
        starts = [r * size + min(r, larger) for r in range(place.ranks + 1)]
        self.own = range(starts[place.rank], starts[place.rank + 1])
        problem: HamlearnError | None = None
        try:
            if len(pairs) < place.ranks:
                raise ConfigError(
                    f"{len(pairs)} members for {place.ranks} ranks: start fewer, or give more members"
                )
            own = pairs[self.own.start : self.own.stop]
            self._population = Population.of([seeded(learner_factory, setting, seed) for setting, seed in own])
        except HamlearnError as error:
            problem = error
        place.agree(problem, {"members": self._identity})

    def __len__(self) -> int:
        return len(self._identity)

    @property
    def members(self) -> list[Learner]:
        """This rank's learners; `own` says which of all members they are."""
        return self._population.members

    @property
    def position(self) -> int:
        """How many samples have been taken, whole blocks at a time."""
        return self._position

    @property
    def aside(self) -> dict[int, Exception]:
        """Members on this rank that the last run has frozen, and why, by their numbers among all members."""
        return {self.own[number]: error for number, error in self._population.aside.items()}

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["compiled", "eager"] = "compiled",
        *,
        resume: bool = False,
        block: int = 64,
    ) -> Iterator[ShardedReport]:
        """Take samples from `stream` and yield a report of all members for each.

        Args:
            stream: Any iterable of samples, the same on every rank.
            max_steps: How many samples to take at most.
            engine: As for `Population.run`.
            resume: Continue where the loaded checkpoint was saved.
            block: Steps whose losses are sent to the other ranks at one time. Members are as after the last step
                of a block when its first report is handed out.
        """
        if not isinstance(block, int) or block < 1:
            raise ConfigError(f"block={block!r} must be a whole number of samples, at least 1")
        if resume:
            # The population keeps the place in the stream that its members share.
            stream = itertools.islice(stream, self._position, None)
        else:
            self._position = 0
        return self._run(self._population.run(stream, max_steps, engine), block)

    def _run(self, reports: Iterator[Any], block: int) -> Iterator[ShardedReport]:
        with self._place.together():
            while True:
                held = list(itertools.islice(reports, block))
                gathered = self._place.gathered([_summary(report) for report in held])
                if len({len(each) for each in gathered}) != 1:
                    raise ConfigError(
                        "the ranks took different numbers of samples: give every rank the same stream"
                    )
                if not held:
                    return
                self._position += len(held)
                for own, *parts in zip(held, *gathered, strict=True):
                    yield ShardedReport(_joined(parts), own, [took for _, each in parts for took in each])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a new folder in `folder`: one file per member, complete or not there at all."""
        write_together(self._place, Path(folder), self._position, self._write)

    def _write(self, folder: Path) -> None:
        for number, member in zip(self.own, self.members, strict=True):
            member.save(folder / f"member-{number}.safetensors")
        if self._place.rank == 0:
            about = {"format": FORMAT, "members": self._identity, "position": self._position}
            files.replace(folder / "population.json", json.dumps(about).encode())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint that any number of ranks wrote; each rank reads the files of its own members.

        Where one member on one rank cannot load its file, no member on any rank has changed.

        Args:
            path: A checkpoint, or the folder of several, of which the newest is taken.
        """
        problem: HamlearnError | None = None
        loadings, position = [], 0
        try:
            found = newest_of(path)
            position = _position_in(found, self._identity)
            for number, member in zip(self.own, self.members, strict=True):
                file = found / f"member-{number}.safetensors"
                tensors, header = checkpoint.read(file)
                with checkpoint.reading(file):
                    loadings += member.loadings_of(file, tensors, header, new_hyper=False)
        except CheckpointError as error:
            problem = error
        self._place.agree(problem)
        take_up(loadings)
        self._position = position


def _position_in(path: Path, members: list[Any]) -> int:
    """How many samples had been taken, if the checkpoint is of these members."""
    try:
        about: dict[str, Any] = json.loads((path / "population.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of a population ({error}): give another one") from error
    if about.get("format") != FORMAT or about.get("members") != members:
        raise CheckpointError(
            f"{path} was saved from other members, or by another version: make the population with the same "
            "hyper-parameters and seeds, in the same order"
        )
    return int(about["position"])


def _summary(report: PopulationReport) -> tuple[Tensor | None, list[bool]]:
    """What the other ranks get of a step: the losses, and which members took a sample."""
    loss = report.loss
    return None if loss is None else loss.detach().cpu(), report.took


def _joined(parts: list[tuple[Tensor | None, list[bool]]]) -> Tensor | None:
    """The losses of all members; not a number where a rank has none and another one has."""
    known = next((loss for loss, _ in parts if loss is not None), None)
    if known is None:
        return None
    return torch.cat(
        [known.new_full((len(took),), float("nan")) if loss is None else loss for loss, took in parts]
    )
