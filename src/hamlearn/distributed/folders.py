"""Checkpoints that ranks write together: a folder per tick, one safetensors file per rank, complete or absent."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from hamlearn.distributed.place import Place
from hamlearn.errors import CheckpointError, HamlearnError

_COMPLETE = re.compile(r"tick-\d{12}")
_PARTIAL = ".partial"


def complete(folder: str | os.PathLike[str]) -> list[Path]:
    """The complete checkpoints in a folder, the oldest first."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if is_checkpoint(path)) if folder.is_dir() else []


def is_checkpoint(path: Path) -> bool:
    """Whether a path has the name of a complete checkpoint."""
    return _COMPLETE.fullmatch(path.name) is not None


def newest_of(path: str | os.PathLike[str]) -> Path:
    """A checkpoint itself, or the newest complete one in a folder of them."""
    if is_checkpoint(Path(path)):
        return Path(path)
    found = complete(path)
    if not found:
        raise CheckpointError(
            f"{path} holds no complete checkpoint (a folder named tick-…, without .partial): look for it "
            "elsewhere, or start again"
        )
    return found[-1]


def write_together(
    place: Place, folder: Path, tick: int, write: Callable[[Path], None], keep: int | None = None
) -> None:
    """Let every rank write its share to a folder, which gets its name once all shares are there.

    Args:
        place: Where this process stands.
        folder: Where checkpoints are kept.
        tick: Names the checkpoint; the same on every rank.
        write: Writes this rank's share into the folder that it is given.
        keep: How many complete checkpoints to keep; `None`: all.
    """
    path = folder / f"tick-{tick:012d}"
    partial = path.with_name(path.name + _PARTIAL)
    problem: HamlearnError | None = None
    try:
        partial.mkdir(parents=True, exist_ok=True)
        write(partial)
    except OSError as error:
        problem = CheckpointError(f"cannot save {path}: {error}. Allow writing there, or save elsewhere")
    except CheckpointError as error:
        problem = error
    place.agree(problem, {"tick": tick})
    with place.together():
        if place.rank == 0:
            shutil.rmtree(path, ignore_errors=True)  # the same tick, saved once more
            partial.rename(path)
            held = complete(folder)
            for old in held[: len(held) - keep] if keep is not None else []:
                shutil.rmtree(old, ignore_errors=True)
        # No rank reads it before it is complete.
        place.gathered(None)


def sweep(folder: Path) -> None:
    """Remove what was not completed: its writer is gone."""
    for path in folder.glob(f"tick-*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
