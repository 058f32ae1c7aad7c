"""Checkpoints on disk: one folder per tick by `torch.distributed.checkpoint`, complete or not there at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from hamlearn.errors import CheckpointError
from hamlearn.state import files

FORMAT = "hamlearn-distributed-1"
_COMPLETE = re.compile(r"tick-\d{12}")
PARTIAL = ".partial"


def complete(folder: str | os.PathLike[str]) -> list[Path]:
    """The complete checkpoints in a folder, the oldest first.

    Example:
        >>> complete("no such folder")
        []
    """
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _COMPLETE.fullmatch(path.name))


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


class Saving:
    """Writes one checkpoint at a time, in a thread of its own, so that ticks go on meanwhile.

    A checkpoint is written under a name that ends in `.partial`, and renamed when all ranks have written their
    share: a name without that ending is a complete checkpoint.

    Args:
        rank: Place of this process; the first one renames.
        group: All ranks that write; `None` for a single process.
        timeout: Seconds that writing may take.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup | None, timeout: float) -> None:
        self._rank, self._group, self._timeout = rank, group, timeout
        self._pool: ThreadPoolExecutor | None = None
        self._written: Future[Any] | None = None
        self._path = Path()
        self._keep: int | None = None

    def begin(
        self, folder: Path, tick: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any], keep: int | None
    ) -> None:
        """Begin to write; `tensors` must not change any more."""
        self.finish()
        self._path, self._keep = folder / f"tick-{tick:012d}", keep
        partial = self._partial()
        try:
            partial.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot save {self._path}: {error}. Allow writing there, or save elsewhere"
            ) from error
        text = json.dumps({"format": FORMAT, **about}).encode()

        files.replace(partial / f"rank-{self._rank}.json", text)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="hamlearn-checkpoint")
        self._written = self._pool.submit(_write, dict(tensors), partial, self._group)

    def _partial(self) -> Path:
        return self._path.with_name(self._path.name + PARTIAL)

    def poll(self) -> None:
        """Mark a checkpoint as complete where it has been written meanwhile."""
        if self._written is not None and self._written.done():
            self.finish()

    def failure(self) -> CheckpointError | None:
        """Why the checkpoint under way cannot be written, where a rank has told the others so.

        A rank that hears of it first ends, and its neighbours lose it: this is then the cause to be told.
        """
        if self._written is None:
            return None
        try:
            told = self._written.exception(self._timeout / 2)
        except LateError:
            return None
        return self._refused(told) if isinstance(told, CheckpointException) else None

    def _refused(self, error: BaseException) -> CheckpointError:
        causes = error.failures if isinstance(error, CheckpointException) else {}
        told = "; ".join(f"rank {rank}: {cause[0]}" for rank, cause in causes.items()) or str(error)
        return CheckpointError(
            f"cannot save {self._path}: {told}. Checkpoints that were complete before are as they were. Make "
            "room on that disk, look at the other ranks, or save elsewhere"
        )

    def finish(self) -> None:
        """Wait until the checkpoint under way is complete."""
        if self._written is None:
            return
        written, self._written = self._written, None
        try:
            written.result(self._timeout)
        except (CheckpointException, OSError, RuntimeError, LateError) as error:
            raise self._refused(error) from error
        if self._rank == 0:
            if self._path.exists():  # the same tick, saved once more
                shutil.rmtree(self._path)
            self._partial().rename(self._path)
            held = complete(self._path.parent)
            for old in held[: len(held) - self._keep] if self._keep is not None else []:
                shutil.rmtree(old, ignore_errors=True)


def _write(tensors: dict[str, Tensor], path: Path, group: dist.ProcessGroup | None) -> None:
    # A single process is what is meant here, not a mistake to be warned of.
    with warnings.catch_warnings():
        if group is None:
            warnings.simplefilter("ignore", UserWarning)
        save(tensors, storage_writer=FileSystemWriter(path), process_group=group, no_dist=group is None)


def sweep(folder: Path) -> None:
    """Remove what was not completed: its writer is gone."""
    for path in folder.glob(f"tick-*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


class Saved:
    """A complete checkpoint: what each rank wrote of itself, and tensors by name.

    Args:
        path: Its folder, or a folder of checkpoints, of which the newest is taken.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = newest_of(path)
        try:
            # More ranks may have left files here that died while they wrote the same tick.
            count = json.loads((self.path / "rank-0.json").read_bytes())["ranks"]
            self.ranks = [json.loads((self.path / f"rank-{k}.json").read_bytes()) for k in range(count)]
            described = FileSystemReader(self.path).read_metadata().state_dict_metadata
        except Exception as error:  # what reads a damaged file may raise anything
            raise CheckpointError(f"{self.path} cannot be read: {error}. Restore it from a copy") from error
        if any(rank.get("format") != FORMAT for rank in self.ranks):
            raise CheckpointError(f"{self.path} has not the format {FORMAT!r}: it was written by another version")
        self.forms = {n: m for n, m in described.items() if isinstance(m, TensorStorageMetadata)}

    def __contains__(self, name: str) -> bool:
        return name in self.forms

    def under(self, prefix: str) -> list[str]:
        """The names that begin with `prefix`, without it."""
        return [name.removeprefix(prefix) for name in self.forms if name.startswith(prefix)]

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors, on the CPU; each process reads what it needs."""
        wanted: dict[str, Any] = {}
        for name in names:
            if name not in self.forms:
                raise CheckpointError(f"{self.path} has no tensor {name!r}: it was saved from another model")
            form = self.forms[name]
            wanted[name] = torch.empty(form.size, dtype=form.properties.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                load(wanted, storage_reader=FileSystemReader(self.path), no_dist=True)
            except (CheckpointException, OSError, RuntimeError, ValueError) as error:
                raise CheckpointError(f"{self.path} cannot be read: {error}. Restore it from a copy") from error
        return wanted
