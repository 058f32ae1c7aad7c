"""Where compiled libraries are kept."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
import warnings
from pathlib import Path

VARIABLE = "HAMLEARN_CACHE_DIR"


def folder() -> Path:
    """The folder for compiled loops.

    `$HAMLEARN_CACHE_DIR/loops`, or `hamlearn/loops` in `$XDG_CACHE_HOME` or `~/.cache`. If it cannot be used,
    libraries are kept in a private temporary folder until the process ends, with a warning.
    """
    try:
        path = _place(os.environ.get(VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _require_own(path)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"compiled loops are kept for this process only: {error}. Set {VARIABLE} to a folder of your own",
            RuntimeWarning,
            stacklevel=2,
        )
        return Path(_temporary().name)
    return path


def _place(chosen: str, xdg: str) -> Path:
    if chosen:
        return Path(chosen).absolute() / "loops"
    # A path that is not absolute does not count, says the standard.
    base = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "hamlearn" / "loops"


def _require_own(path: Path) -> None:
    """Raise `PermissionError` if other users can write to the folder: what lies in it is loaded and run."""
    found = path.stat()
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user, {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})")
    if not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written to")


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="hamlearn-", ignore_cleanup_errors=True)
