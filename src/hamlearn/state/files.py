"""Files that are whole or absent: written beside their place, forced to disk, and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hamlearn.errors import CheckpointError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX, _SUFFIX = ".hamlearn-", ".tmp"
_OURS = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}" + re.escape(_SUFFIX))
_OLD = 24 * 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)

_swept: set[Path] = set()


def replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `path` hold what `write` writes: whoever looks, at any moment, finds the old file or the new one, whole.

    Args:
        path: The file.
        write: Writes to the file that it is given.

    Raises:
        CheckpointError: If it cannot be written; the old file is as it was then, and nothing is left beside it.
    """
    folder = path.parent
    if not folder.is_dir():
        raise CheckpointError(f"cannot save {path}: there is no folder {folder}. Create it first")
    if path.is_dir():
        raise CheckpointError(f"cannot save {path}: it is a folder. Give the path of a file in it")
    try:
        if folder.resolve() not in _swept:
            sweep(folder)
            _swept.add(folder.resolve())
        _replace(path, write)
    except OSError as error:
        remedy = "Look at the disk, or save elsewhere"
        if error.errno in _FULL:
            remedy = "Make room on that disk, or save to another one"
        elif error.errno in _CLOSED:
            remedy = f"Allow writing to {folder}, or save elsewhere"
        raise CheckpointError(
            f"cannot save {path}: {error.strerror or error}. What was there before is as it was. {remedy}"
        ) from error
    # Some file systems cannot do this to a folder; the file itself is whole either way.
    with contextlib.suppress(OSError):
        _sync(folder)


def sweep(folder: Path) -> None:
    """Remove what savers that were killed have left in a folder; files of those that still write stay."""
    with os.scandir(folder) as found:
        left = [Path(entry.path) for entry in found if _OURS.fullmatch(entry.name)]
    for path in left:
        # It may be gone by now, or another user's.
        with contextlib.suppress(OSError):
            _remove_abandoned(path)


def _replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    handle, temporary = -1, None
    try:
        while handle < 0:
            handle, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=path.parent)
            temporary = Path(name)
            _lock(handle)
            if not os.fstat(handle).st_nlink:
                # Swept away between its making and its lock.
                os.close(handle)
                handle = -1
        assert temporary is not None
        with open(handle, "wb", closefd=False) as file:
            write(file)
        os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise
    finally:
        if handle >= 0:
            os.close(handle)


def _lock(handle: int) -> None:
    """Show that the writer lives: the lock goes with the process, however it ends."""
    if fcntl is not None:
        # Where a file system has no locks, the age of a file tells.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)


def _remove_abandoned(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError:
                pass
            else:
                # While the lock is held: a writer that waits for it looks whether its file is still there.
                path.unlink()
                return
        if time.time() - os.fstat(handle).st_mtime > _OLD:
            path.unlink()
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
