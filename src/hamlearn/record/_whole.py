"""Files that are whole or as they were."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file so that a crash or a full disk leaves the old one or the new one, whole."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """As `write_text`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        message = f"cannot write the file ({error.strerror}); what was there before is as it was"
        raise OSError(error.errno, message, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
