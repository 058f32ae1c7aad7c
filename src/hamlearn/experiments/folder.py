"""A folder of results: one process at a time writes into it, and files in it are whole or as they were."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from hamlearn.errors import ConfigError
from hamlearn.record._whole import write_text

LOCK, OWNER = ".lock", ".owner"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process works in the folder, which is made if need be, and is free of half-written files.

    The system itself holds the lock, and lets it go when the process ends, however it ends.

    Raises:
        ConfigError: Another process works in the folder; says which.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} is a file, not a folder. Give another folder by --out or run.out.") from error
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(
            f"{folder} is in use by {_owner(folder)}. Wait until it is done, stop it, or give another folder "
            "by --out."
        ) from error
    try:
        for left in folder.rglob(".*.tmp"):
            left.unlink(missing_ok=True)
        write_text(
            folder / OWNER, f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%F %T}"
        )
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        return (folder / OWNER).read_text("utf-8")
    except OSError:
        # It has the lock already, and has not yet come to say who it is.
        return "another process"
