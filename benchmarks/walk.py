"""Calls of the package in an eager step, and in a warm compiled block of 256 samples.

Run as `python -m benchmarks.walk`. Counted with `sys.setprofile`, in the files of the package alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import hamlearn as hl

PACKAGE = str(Path(hl.__file__).parent)


def calls_of(function: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Calls of the package's functions, by file and name, while `function` runs."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname] += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def learner() -> hl.Learner:
    """An MLP that follows SGD with momentum."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))
    return hl.Learner(hl.Network.feedforward(module), nn.functional.cross_entropy, hl.Hyper.from_sgd(0.01, 0.9))


def eager_step() -> Counter[tuple[str, str]]:
    """The calls of one eager step; the first two find the rates that later ones use again."""
    subject, sample = learner(), hl.Sample(torch.randn(1, 4), torch.tensor([1]))
    for _ in range(2):
        subject.step(sample)
    return calls_of(lambda: subject.step(sample))


def warm_block(count: int = 256) -> Counter[tuple[str, str]]:
    """The calls of one block of samples that was compiled before, reports included."""
    subject = learner()
    samples = hl.streams.from_any((torch.randn(4 * count, 1, 4), torch.randint(3, (4 * count, 1))))
    run = subject.run(samples, engine="compiled", chunk=count)
    for _ in range(count):
        next(run)
    return calls_of(lambda: [next(run) for _ in range(count)])


def main() -> None:
    """Print both walks."""
    for name, calls in (("an eager step of an MLP", eager_step()), ("a warm block of 256 steps", warm_block())):
        files = {file for file, _ in calls}
        print(f"{name}: {calls.total()} calls of {len(calls)} functions in {len(files)} files")
        if "-v" in sys.argv:
            for (file, function), number in sorted(calls.items()):
                print(f"  {number:6} {file}: {function}")


if __name__ == "__main__":
    main()
