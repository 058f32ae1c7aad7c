"""Ctrl-C at any line of the library: afterwards a learner is as before, or as after."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz.looks import Look, Mismatch, assert_close, look, same

LIBRARY = str(Path(hl.__file__).parent)


class Interrupts:
    """Part of a session: steps and runs that a `KeyboardInterrupt` ends."""

    def do_interrupt(self, permille: int, engine: str) -> None:
        count = 1 if engine == "step" else 3
        path = self.folder / "interrupted"
        self.subject.save(path)

        def act(learner: hl.Learner) -> None:
            if engine == "step":
                learner.step(self.sample(self.k))
                return
            more = {"engine": "compiled", "chunk": 2} if engine == "compiled" else {}
            for _ in learner.run(self.feed(), max_steps=count, **more):
                pass

        other, _ = self.fresh()
        other.load(path)
        with self.refusals():
            self.seed()
            try:
                lines = traced(lambda: act(other), None)
            except hl.errors.NonFiniteError as error:
                self.diverged(count, error)
            self.seed()
            traced(lambda: act(self.subject), permille * lines // 1000)
        gc.collect()
        seen = look(self.subject)
        self.seed()
        for place in range(count + 1):
            there = look(self.twin)
            if all(same(seen[n], there[n]) for n in there) if engine != "compiled" else self.is_close(seen, there):
                break
            if place == count:
                near = [n for n in there if not same(seen.get(n), there[n])]
                raise Mismatch(f"interrupted {engine} is neither as before nor as after any sample: {near}")
            self.both(self.sample(self.k + place))
        self.k += place
        self.compare(seen, "after an interrupt")
        self.follow()
        # What cannot be seen must be whole too: the next sample shows it.
        self.do_step(1)

    def is_close(self, one: Look, other: Look) -> bool:
        try:
            for name in other:
                if isinstance(other[name], torch.Tensor) or name == "t":
                    assert_close(one[name], other[name], self.tolerance, name)
        except (Mismatch, KeyError):
            return False
        return True


def traced(act: Callable[[], None], stop: int | None) -> int:
    """Run `act` and count the lines of Python it passes; raise `KeyboardInterrupt` at line `stop`."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            lines += 1
            if stop is not None and lines == stop + 1:
                raise KeyboardInterrupt
        return trace

    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        if stop is None:
            raise
    finally:
        sys.settrace(before)
        sys.unraisablehook = hook
        torch.set_grad_enabled(True)
    return lines
