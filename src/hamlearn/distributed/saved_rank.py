"""Checkpoints as the ranks of a pipeline write and read them together."""

from __future__ import annotations

import os
from pathlib import Path

from hamlearn.distributed import checkpoints
from hamlearn.distributed.rank import Rank
from hamlearn.distributed.storage import Saved, complete, is_checkpoint, sweep
from hamlearn.errors import CheckpointError, HamlearnError


class SavedRank(Rank):
    """A rank that saves, loads and resumes."""

    def save(self, folder: str | os.PathLike[str], *, keep: int | None = None, wait: bool = True) -> None:
        """Write everything to a new folder in `folder`, named by the tick, on every rank alike.

        Samples in flight, messages between ranks and the streams' positions are part of it. A reader finds
        the checkpoint complete, or not at all. All ranks need the same file system.

        Args:
            folder: Where checkpoints are kept.
            keep: How many complete ones to keep, the oldest are removed; `None`: all.
            wait: Whether to return only when it is complete. Else it is written while ticks go on, and the next
                save, or the end of the run, waits for it.
        """
        with self._together():
            self._settle()
            tensors, about = checkpoints.content(self._held())
            self._saving.begin(self._own(folder), self.ticks, tensors, about, keep)
            if wait:
                self._saving.finish()
                # Only the first rank marks it complete, and it is not to be read before that.
                self._place.number_from_first(0)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False, drop: bool = False) -> None:
        """Read a checkpoint that any number of ranks wrote; with the same groups, all goes on bit for bit.

        It is read by `torch.distributed.checkpoint`, which unpickles an index: load what you trust.

        Args:
            path: A checkpoint, or the folder of several, of which the newest complete one is taken.
            new_hyper: Accept other hyper-parameters than the checkpoint's.
            drop: Accept other groups, and drop samples in flight and states, which belong to the old ones.
        """
        with self._together():
            self._saving.finish()
            self._settle()
        problem: HamlearnError | None = None
        change = None
        try:
            change = checkpoints.restored(self._held(), Saved(self._own(path)), new_hyper=new_hyper, drop=drop)
        except CheckpointError as error:
            problem = error
        with self._together():
            problem = self._place.agree(problem, {})
        if problem is not None:
            raise problem
        assert change is not None
        with self._together():
            change()
            # The next header describes the form of states again.
            self._key = None

    def resume(self, folder: str | os.PathLike[str]) -> bool:
        """Load the newest complete checkpoint in `folder`, if there is one; then `run(stream, resume=True)`.

        What dead runs have left there half written is removed.
        """
        newest = -1
        with self._together():
            if self.rank == 0:
                sweep(self._own(folder))
                newest = max(
                    (int(path.name.removeprefix("tick-")) for path in complete(self._own(folder))), default=-1
                )
            newest = self._place.number_from_first(newest)
        if newest >= 0:
            self.load(Path(folder) / f"tick-{newest:012d}")
        return newest >= 0

    def _held(self) -> checkpoints.RankState:
        return checkpoints.RankState(self._ticker, self._reader, self.config, self.rank, self.ranks)

    def _own(self, path: str | os.PathLike[str]) -> Path:
        """Where this replica keeps what is kept at `path`: replicas but the first have folders of their own."""
        path, replica = Path(path), self._place.replica
        if not replica:
            return path
        name = f"replica-{replica}"
        return path.parent / name / path.name if is_checkpoint(path) else path / name
