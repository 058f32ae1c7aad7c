"""Where compiled libraries are kept: a folder that no other user can write to."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
import warnings
from pathlib import Path

VARIABLE = "HAMLEARN_CACHE_DIR"
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def folder() -> Path:
    """The folder for compiled loops, which no other user can write to or replace.

    `$HAMLEARN_CACHE_DIR/loops`, or `hamlearn/loops` in `$XDG_CACHE_HOME` or `~/.cache`. If there is none, or
    others can write to it or to a folder above it, libraries are kept in a private temporary folder until the
    process ends, with a warning.
    """
    try:
        path = _place(os.environ.get(VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        # Without links from here on, so that what is checked is what is used.
        path = path.resolve(strict=True)
        _require_own(path)
        for above in path.parents:
            _require_safe_parent(above)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"compiled loops are kept for this process only: {error}. Set {VARIABLE} to a folder of your own, in "
            "folders that others cannot write to",
            RuntimeWarning,
            stacklevel=2,
        )
        return Path(_temporary().name)
    return path


def _place(chosen: str, xdg: str) -> Path:
    if chosen:
        return Path(chosen).absolute() / "loops"
    # A path that is not absolute does not count, says the standard.
    if Path(xdg).is_absolute():
        return Path(xdg) / "hamlearn" / "loops"
    try:
        return Path.home() / ".cache" / "hamlearn" / "loops"
    except RuntimeError as error:
        raise RuntimeError("this user has no home directory") from error


def _require_own(path: Path) -> None:
    """Raise `PermissionError` if other users can write to a folder: what lies in it is loaded and run."""
    found = path.stat()
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user, {found.st_uid}")
    if found.st_mode & _WRITABLE:
        raise PermissionError(f"{path} can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})")
    if not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written to")


def _require_safe_parent(path: Path) -> None:
    """Raise `PermissionError` if another user, root apart, could replace what is in a folder."""
    found = path.stat()
    if hasattr(os, "geteuid") and found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to another user, {found.st_uid}")
    # With the sticky bit, as /tmp has it, only the owner of an entry can replace it.
    if found.st_mode & stat.S_ISVTX:
        return
    writable = found.st_mode & _WRITABLE
    if writable & stat.S_IWGRP and _is_private_group(found.st_gid):
        writable &= ~stat.S_IWGRP
    if writable:
        raise PermissionError(f"{path} can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})")


def _is_private_group(group: int) -> bool:
    """Whether a group is that of this user alone; many systems make one of the same name for each user."""
    try:
        import grp
        import pwd

        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        return False


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="hamlearn-", ignore_cleanup_errors=True)
