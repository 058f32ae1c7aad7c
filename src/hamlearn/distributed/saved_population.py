"""Checkpoints of a population over ranks: one file per member, so that any number of ranks can load them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hamlearn.distributed.place import Place
from hamlearn.distributed.storage import PARTIAL, newest_of
from hamlearn.errors import CheckpointError, HamlearnError
from hamlearn.learner import Learner, Population
from hamlearn.state import checkpoint, files
from hamlearn.state.saving import take_up

FORMAT = "hamlearn-population-1"


class SavedPopulation:
    """One rank's slice of a population, saved and loaded together with those of all other ranks.

    Attributes:
        own: Which of all members are on this rank.
    """

    own: range
    _place: Place
    _population: Population
    _identity: list[Any]
    _several: bool
    _position: int

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What ranks do together; where it fails, closed connections tell the others."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException:
            self._place.close()
            raise

    @property
    def members(self) -> list[Learner]:
        """This rank's learners; `own` says which of all members they are."""
        return self._population.members

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a new folder in `folder`: one file per member, complete or not there at all.

        Where members have streams of their own, each file holds its member's place in its stream.
        """
        path = Path(folder) / f"tick-{self._position:012d}"
        partial = path.with_name(path.name + PARTIAL)
        problem: HamlearnError | None = None
        try:
            partial.mkdir(parents=True, exist_ok=True)
            for number, member in zip(self.own, self.members, strict=True):
                member.save(partial / f"member-{number}.safetensors")
            if self._place.rank == 0:
                about = {"format": FORMAT, "members": self._identity, "position": self._position}
                text = json.dumps(about | {"streams": self._several}).encode()
                files.replace(partial / "population.json", text)
        except OSError as error:
            problem = CheckpointError(f"cannot save {path}: {error}. Allow writing there, or save elsewhere")
        except CheckpointError as error:
            problem = error
        with self._together():
            problem = self._place.agree(problem, {"position": self._position})
        if problem is not None:
            raise problem
        with self._together():
            if self._place.rank == 0:
                shutil.rmtree(path, ignore_errors=True)
                partial.rename(path)
            self._place.gathered(None)

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
            about = _about(found, self._identity, self._several)
            with checkpoint.reading(found):
                position = about["position"]
            for number, member in zip(self.own, self.members, strict=True):
                file = found / f"member-{number}.safetensors"
                tensors, header = checkpoint.read(file)
                with checkpoint.reading(file):
                    loadings += member.loadings_of(file, tensors, header, new_hyper=False)
        except CheckpointError as error:
            problem = error
        with self._together():
            problem = self._place.agree(problem, {})
        if problem is not None:
            raise problem
        with self._together():
            take_up(loadings)
            self._position = position


def _about(path: Path, members: list[Any], several: bool) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / "population.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no checkpoint of a population ({error}): give another one") from error
    if about.get("format") != FORMAT or about.get("members") != members:
        raise CheckpointError(
            f"{path} was saved from other members, or by another version: make the population with the same "
            "hyper-parameters and seeds, in the same order"
        )
    if about.get("streams", False) != several:
        had = "streams of their own" if about["streams"] else "one stream for all"
        raise CheckpointError(
            f"{path} was saved from members with {had}, so that their places are not those of this population: "
            f"make it {'with' if about['streams'] else 'without'} streams="
        )
    return about
