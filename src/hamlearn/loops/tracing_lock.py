"""Recordings one at a time, and none cut short by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

tracing_lock = threading.RLock()
"""Held while a step is recorded: PyTorch's tracing changes global state, which two threads would leave changed."""


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Within, Ctrl-C is held back until the end: raised within PyTorch's C++ it would abort the process.

    Example:
        >>> caught = []
        >>> before = signal.signal(signal.SIGINT, lambda *given: caught.append("handled at the end"))
        >>> with defer_sigint():
        ...     signal.raise_signal(signal.SIGINT)
        ...     caught.append("still here")
        >>> caught
        ['still here', 'handled at the end']
        >>> _ = signal.signal(signal.SIGINT, before)
    """
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread receives signals; a handler that is not callable ignores them, or was set in C.
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
