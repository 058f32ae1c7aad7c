"""Recordings one at a time."""

from __future__ import annotations

import threading

tracing_lock = threading.RLock()
"""Held while a step is recorded: PyTorch's tracing changes global state, which two threads would leave changed."""
