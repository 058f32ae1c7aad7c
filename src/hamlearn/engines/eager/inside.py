"""Whether a step is under way, so that what it calls does not undo it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Literal


def inside(owner: object, of: Collection[CodeType]) -> Literal["here", "elsewhere"] | None:
    """Where one of these methods of `owner` is being executed: below this very call, or in another thread.

    A mark that the method sets and takes away could be left standing by an interrupt; the stack cannot.
    """
    here = threading.get_ident()
    found: Literal["elsewhere"] | None = None
    for thread, frame in sys._current_frames().items():
        if _runs(frame, owner, of):
            if thread == here:
                return "here"
            found = "elsewhere"
    return found


def _runs(frame: FrameType | None, owner: object, of: Collection[CodeType]) -> bool:
    while frame is not None:
        if frame.f_code in of and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False
