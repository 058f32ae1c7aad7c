"""Ctrl-C at a chosen line of the library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hamlearn

HERE = str(Path(hamlearn.__file__).parent)


class Tracer:
    """Raises KeyboardInterrupt where the library comes to its line number `at`, counted from 0."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at + 1:
                raise KeyboardInterrupt
        return self


def broken_off(call: Callable[[], Any], at: int) -> bool:
    """Run `call` with an interrupt at line `at`; answers whether it came so far."""
    before = sys.gettrace()
    sys.settrace(Tracer(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
