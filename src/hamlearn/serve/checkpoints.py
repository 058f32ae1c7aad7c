"""Checkpoints of one learner: numbered files, the last few of which are kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from hamlearn.errors import CheckpointError
from hamlearn.state import checkpoint

PATTERN = "checkpoint-*.safetensors"
_SERVED = "served"
"""The entry of a file's header that a server adds to that of the learner."""


class About(NamedTuple):
    """Facts about a checkpoint that can be read without loading it.

    Attributes:
        number: Of the checkpoint; it grows.
        position: Samples taken.
        last_id: Id of the last sample that had one.
        time: When it was taken, in ISO format.
        pinned: Whether a request or a rollback asked for it.
        diverging: The sample since which the learner diverged at that moment, if it did.
    """

    number: int
    position: int
    last_id: str | int | None
    time: str
    pinned: bool = False
    diverging: int | None = None

    @property
    def taken(self) -> float:
        """When it was taken, in seconds since 1970."""
        return datetime.fromisoformat(self.time).timestamp()


class Checkpoints:
    """The checkpoints in one folder: the newest, and the last few at some distance from each other.

    Args:
        folder: Where they are.
        keep: How many are kept.
        apart: Seconds between two that are kept.

    Attributes:
        known: Those that are there, oldest first.
    """

    def __init__(self, folder: Path, keep: int, apart: float) -> None:
        self._folder, self._keep, self._apart = folder, keep, apart
        # A pipe or a device might never be read to its end.
        self.known = sorted(_about(path) for path in folder.glob(PATTERN) if path.is_file())

    @property
    def newest(self) -> About | None:
        """The last one; `None` before the first."""
        return self.known[-1] if self.known else None

    def write(self, about: About, state: Mapping[str, Any], journal: Mapping[str, Any]) -> About:
        """Write a checkpoint whole or not at all, and remove those that are not kept.

        Args:
            about: Of the checkpoint; it gets the next number.
            state: What `learner.state_dict()` returned.
            journal: Counts, ids and scores, as JSON.
        """
        about = about._replace(number=1 + (self.known[-1].number if self.known else 0))
        tensors, header = checkpoint.parts(state)
        served = {"about": about._asdict(), "journal": journal}
        checkpoint.write(self._path(about), tensors, {**header, _SERVED: served})
        self.known.append(about)
        if len(self.known) > 1 and not self._keeps_last_but_one():
            self._remove(self.known[-2])
        while len(self.known) > self._keep:
            self._remove(self.known[0])
        return about

    def read(self, about: About) -> tuple[dict[str, Any], dict[str, Any]]:
        """The learner's state and the journal of a checkpoint."""
        with checkpoint.reading(self._path(about)):
            tensors, header = checkpoint.read(self._path(about))
            journal = header.pop(_SERVED)["journal"]
            return checkpoint.value(tensors, header), journal

    def healthy_before(self, position: int) -> About | None:
        """The last checkpoint before a position that was not taken while the learner diverged."""
        healthy = [about for about in self.known if about.diverging is None and about.position < position]
        return healthy[-1] if healthy else None

    def _keeps_last_but_one(self) -> bool:
        """Whether the one that has just become the last but one stays.

        One of a learner that diverges does not: an unattended model must not push out its own healthy states. The
        last healthy one before it stays, however near the one before it is.
        """
        *older, about, newest = self.known
        if about.diverging is not None:
            return False
        if about.pinned or newest.diverging is not None or not older:
            return True
        return about.taken - older[-1].taken >= self._apart

    def _path(self, about: About) -> Path:
        return self._folder / f"checkpoint-{about.number:09d}.safetensors"

    def _remove(self, about: About) -> None:
        self.known.remove(about)
        # One that cannot be removed now stays; it is found, and pruned, at the next start.
        with contextlib.suppress(OSError):
            self._path(about).unlink()


def _about(path: Path) -> About:
    """Read the header alone; `read` verifies all of the file."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(json.loads((file.metadata() or {})["hamlearn"])["header"])
        return About(**header[_SERVED]["about"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}). Move it away to start from the checkpoint before it."
        ) from error
