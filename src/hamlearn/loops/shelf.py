"""Where compiled libraries are kept: a folder of the user's own, its content verified before it is run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path

VARIABLE = "HAMLEARN_CACHE_DIR"


def folder() -> Path:
    """The folder for compiled loops, which no other user can write to.

    `$HAMLEARN_CACHE_DIR/loops`, or `hamlearn/loops` in `$XDG_CACHE_HOME` or `~/.cache`. Where that cannot be had,
    or others can write to it, a folder that lasts as long as the process, with a warning.
    """
    try:
        path = _place(os.environ.get(VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", ""))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _require_own(path)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"compiled loops are kept for this process only: {error}. Set {VARIABLE} to a folder of your own that "
            "others cannot write to",
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
    """Raise `PermissionError` where somebody else may have put something in."""
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


def intact(library: Path, key: str) -> bool:
    """Whether a library is the user's own and, to the byte, what was stored for this key."""
    try:
        _require_own(library)
        stored = _digest_file(library).read_text()
        return stored == _digest(library.read_bytes(), key)
    except (OSError, UnicodeDecodeError):
        return False


def store(made: Path, library: Path, key: str) -> None:
    """Move a library that was just made to its place, with a digest that binds it to its key.

    Both come by renaming, the digest last. Where two processes store at once, one of each stays; should they not
    belong together, the library is made anew.
    """
    note = made.with_suffix(".sha256")
    note.write_text(_digest(made.read_bytes(), key))
    with contextlib.suppress(FileNotFoundError):
        _digest_file(library).unlink()
    made.replace(library)
    note.replace(_digest_file(library))


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(content: bytes, key: str) -> str:
    return hashlib.sha256(key.encode() + b"\n" + content).hexdigest()
