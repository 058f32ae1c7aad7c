"""Ctrl-C held back while something changes that must not stop half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Within, Ctrl-C waits; it takes effect at the end of the block.

    Only Python's main thread is sent signals. In other threads, and if SIGINT is not handled in Python, nothing is
    changed.

    Example:
        >>> with defer_sigint():
        ...     weights = [1.0, 2.0]
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[0])
