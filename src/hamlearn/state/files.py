"""Files that are whole or absent: written beside their place, forced to disk, and renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hamlearn.errors import CheckpointError


def replace(path: Path, data: bytes) -> None:
    """Let `path` hold `data`: a reader finds the old file or the new one, whole, at any moment.

    The file beside it has a fixed name, so that what a killed process has left is overwritten the next time. Two
    processes that write one file at the same time are not kept apart.

    Args:
        path: The file.
        data: Its new content.

    Raises:
        CheckpointError: If it cannot be written; the old file is as it was then, and nothing is left beside it.
    """
    folder, beside = path.parent, path.with_name(f".{path.name}.tmp")
    if not folder.is_dir():
        raise CheckpointError(f"cannot save {path}: there is no folder {folder}. Create it first")
    if path.is_dir():
        raise CheckpointError(f"cannot save {path}: it is a folder. Give the path of a file in it")
    try:
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CheckpointError(
            f"cannot save {path}: {error.strerror or error}. An older file is as it was. Look at the free space "
            f"on the disk and the permissions of {folder}, or save elsewhere"
        ) from error
    # The new name is on disk only after the folder is; some file systems cannot do this to a folder.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
