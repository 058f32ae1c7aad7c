"""A folder of results, in which one process at a time works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from hamlearn.errors import ConfigError

LOCK = ".lock"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other processes from working in it; half-written files are removed.

    The system holds the lock, and releases it when the process ends, however it ends.

    Raises:
        ConfigError: Another process works in the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} is a file, not a folder. Give another one with --out or run.out.") from error
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(
            f"{folder} is in use by another process. Wait until it is done, stop it, or give another folder with "
            "--out."
        ) from error
    try:
        for left in folder.rglob(".*.tmp"):
            left.unlink(missing_ok=True)
        yield
    finally:
        lock.release()
