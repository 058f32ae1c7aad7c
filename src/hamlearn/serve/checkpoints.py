"""Checkpoints of one learner: numbered files, the last few of which are kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hamlearn.errors import CheckpointError

PATTERN = "checkpoint-*.safetensors"
_SUFFIX = ".tmp"


class About(NamedTuple):
    """What is known of a checkpoint without loading it.

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
    def age(self) -> float:
        """Seconds since it was taken."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.time)).total_seconds()


class Checkpoints:
    """The checkpoints in one folder: the newest, and the last few at some distance from each other.

    The newest one is replaced by the next, unless it was asked for or is at least `apart` seconds younger than the
    one before it. One that was taken while the learner diverged is always replaced, so that an unattended model
    cannot push out its own healthy states.

    Args:
        folder: Where they are.
        keep: How many are kept.
        apart: Seconds between two that are kept.
    """

    def __init__(self, folder: Path, keep: int, apart: float) -> None:
        self._folder, self._keep, self._apart = folder, keep, apart
        self.known = sorted(_about(path) for path in folder.glob(PATTERN))

    @property
    def newest(self) -> About | None:
        """The last one; `None` before the first."""
        return self.known[-1] if self.known else None

    def path(self, number: int) -> Path:
        """The file of a checkpoint."""
        return self._folder / f"checkpoint-{number:09d}.safetensors"

    def write(self, about: About, state: Mapping[str, Any], journal: Mapping[str, Any]) -> None:
        """Write a checkpoint whole or not at all, wait for the disk, and remove those that are not kept.

        Args:
            about: Of the checkpoint; it gets the next number.
            state: What `learner.state_dict()` returned.
            journal: Counts, ids and scores, as JSON.
        """
        number = self.known[-1].number + 1 if self.known else 1
        about = about._replace(number=number)
        tensors = {name: tensor.contiguous() for name, tensor in state["tensors"].items()}
        rest = {name: value for name, value in state.items() if name != "tensors"}
        told = json.dumps({"about": about._asdict(), "state": rest, "journal": journal})
        header = {"hamlearn.serve": told, "sha256": _digest(tensors, told)}
        try:
            _write_whole(self.path(number), save(tensors, header))
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.path(number)}: {error.strerror or error}. Make room, or check permissions; "
                "the last checkpoint is still there"
            ) from error
        self.known.append(about)
        self._prune()

    def read(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The learner's state and the journal of a checkpoint."""
        path = self.path(number)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            told = metadata["hamlearn.serve"]
            if metadata["sha256"] != _digest(tensors, told):
                raise CheckpointError(f"{path} is damaged: its checksum differs. {_REMEDY}")
            header = json.loads(told)
            return header["state"] | {"tensors": tensors}, header["journal"]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} cannot be read ({error}). {_REMEDY}") from error

    def healthy_before(self) -> About | None:
        """The last checkpoint before the newest that was not taken while the learner diverged."""
        return next((about for about in reversed(self.known[:-1]) if about.diverging is None), None)

    def _prune(self) -> None:
        if len(self.known) >= 2:
            before, newest = self.known[-2:]
            near = len(self.known) >= 3 and _seconds(self.known[-3], before) < self._apart
            # The last one before the learner diverged is worth keeping, however near the one before it is.
            if before.diverging is not None or (near and not before.pinned and newest.diverging is None):
                self._remove(before)
        while len(self.known) > self._keep:
            self._remove(self.known[0])

    def _remove(self, about: About) -> None:
        self.known.remove(about)
        # One that cannot be removed now stays; it is found, and pruned, at the next start.
        with contextlib.suppress(OSError):
            self.path(about.number).unlink()


_REMEDY = "Move it away to start from the checkpoint before it."


def _about(path: Path) -> About:
    try:
        with safe_open(path, framework="pt") as file:
            return About(**json.loads((file.metadata() or {})["hamlearn.serve"])["about"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). {_REMEDY}") from error


def _seconds(first: About, second: About) -> float:
    return (datetime.fromisoformat(second.time) - datetime.fromisoformat(first.time)).total_seconds()


def _digest(tensors: Mapping[str, torch.Tensor], told: str) -> str:
    found = hashlib.sha256(told.encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    """Write under another name, wait for the disk, and rename: the file is complete or absent."""
    draft = path.with_name(f".{path.name}{_SUFFIX}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
