"""Recordings one at a time: PyTorch's tracing stands neither a second thread nor an interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RECORDING = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """Within, no other thread records.

    A recording switches logging and warnings off, winds random numbers back and patches PyTorch, for the whole
    process: two at once would leave it so.
    """
    with _RECORDING:
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, an interrupt by the keyboard waits for the end; raised within PyTorch's C++ it would abort.

    Example:
        >>> caught = []
        >>> before = signal.signal(signal.SIGINT, lambda *given: caught.append("told at the end"))
        >>> with uninterrupted():
        ...     signal.raise_signal(signal.SIGINT)
        ...     caught.append("still here")
        >>> caught
        ['still here', 'told at the end']
        >>> _ = signal.signal(signal.SIGINT, before)
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[0])
