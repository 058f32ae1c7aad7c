"""Faults that can befall a rank, for tests and for the soak."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path

KINDS = ("kill", "stop", "stream", "cut", "disk")


def strike(kind: str) -> None:
    """Let this process suffer a fault: be killed, be stopped, fail while it reads, lose connections, lack disk."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "stream":
        raise OSError("the source of the stream is gone")
    elif kind == "cut":
        cut_connections()
    elif kind == "disk":
        # Python ignores the signal that comes with it: a write beyond this size fails, as on a full disk.
        fill_disk(256)
    else:
        raise ValueError(f"kind={kind!r} is none of {KINDS}")


def fill_disk(room: int = resource.RLIM_INFINITY) -> None:
    """Let this process write files of so many bytes at most; without a number, make room again."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def cut_connections() -> None:
    """Shut all connections of this process to others, as a network that fails does; listeners stay."""
    for handle in list(Path("/proc/self/fd").iterdir()):
        try:
            if not handle.readlink().name.startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(handle.name)))
        except OSError:  # closed meanwhile
            continue
        with connection:
            try:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # a listener has no peer
                continue
