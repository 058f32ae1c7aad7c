"""The differential fuzzer: cases of every kind, each from one integer, until time is over."""

from __future__ import annotations

import gc
import json
import logging
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time
from types import ModuleType
from typing import Any

import torch

from tests.fuzz import agents, chains, learners, optimizers, populations, references, sgd, shrink

KINDS: dict[str, ModuleType] = {
    "learner": learners,
    "sgd": sgd,
    "reference": references,
    "local": chains,
    "population": populations,
    "agents": agents,
    "optimizer": optimizers,
}
SHARE = {"learner": 12, "sgd": 2, "reference": 2, "local": 3, "population": 2, "agents": 2, "optimizer": 1}
LONGEST = 400
SHRINKS = 25


def quiet() -> None:
    """Failures are listed in the summary; what the recording logs on its way is not needed."""
    for name in ("hamlearn", "torch._subclasses.fake_tensor", "torch"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    torch.set_num_threads(1)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in a case that does not end."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"the case has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reproducer(kind: str, spec: Any, ops: list[Any]) -> str:
    """The command that plays a case again."""
    case = {"kind": kind, "spec": spec.differences(), "ops": ops}
    return f"python -m tests.fuzz --replay '{json.dumps(case)}'"


def replay(text: str) -> Counter[str]:
    """Play a case from the text that `reproducer` gave."""
    case = json.loads(text)
    module = KINDS[case["kind"]]
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in case["spec"].items()}
    return module.play(module.Spec(**given), [tuple(op) for op in case["ops"]])


def one(kind: str, seed: int, variants: int = 60) -> Counter[str]:
    """Play the case of one integer; a failure says how to play it again."""
    module = KINDS[kind]
    spec, ops = module.draw(seed, variants)
    try:
        return module.play(spec, ops)
    except Exception as error:
        error.add_note(reproducer(kind, spec, ops))
        raise


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Cases of every kind for that long, from that seed on.

    Returns:
        How many cases of each kind were played, what was done in them, what failed (each with a small witness and
        the command that plays it), the seed, and the time taken.
    """
    quiet()
    begin, cpu, r = monotonic(), process_time(), random.Random(seed)
    cases: Counter[str] = Counter()
    done: Counter[str] = Counter()
    failures: dict[str, dict[str, Any]] = {}
    kinds = [kind for kind, share in SHARE.items() for _ in range(share)]
    while monotonic() - begin < seconds:
        kind, number = r.choice(kinds), r.randrange(2**31)
        module = KINDS[kind]
        spec, ops = module.draw(number)
        try:
            with at_most(LONGEST):
                counts = module.play(spec, ops)
        except Exception as error:
            note(failures, kind, spec, ops, error, module.play)
        else:
            done.update({f"{kind}: {name}": count for name, count in counts.items()})
        cases[kind] += 1
        if sum(cases.values()) % 50 == 0:
            gc.collect()
    return {
        "cases": dict(cases),
        "done": dict(sorted(done.items())),
        "failures": list(failures.values()),
        "seed": seed,
        "seconds": round(monotonic() - begin, 1),
        "cpu_seconds": round(process_time() - cpu, 1),
        "compiler": shutil.which("cc") is not None,
    }


def note(
    failures: dict[str, dict[str, Any]],
    kind: str,
    spec: Any,
    ops: list[Any],
    error: BaseException,
    play: Callable[..., Any],
) -> None:
    """Keep a failure, made smaller; those that look alike are counted."""
    if len(failures) < SHRINKS:
        try:
            with at_most(LONGEST):
                spec, ops, error = shrink.smaller(play, spec, ops, 30)
        except (AssertionError, TimeoutError) as unclear:
            error.add_note(str(unclear))
    network = getattr(spec, "network", getattr(spec, "kind", ""))
    key = f"{kind}, {network}, {'+'.join(sorted({op[0] for op in ops}))}: {shrink.signature(error)}"
    if key in failures:
        failures[key]["times"] += 1
        return
    # A summary is kept: where the project lies on this machine is nobody's business.
    root = f"{Path(__file__).parents[2]}/"
    trace = [line.replace(root, "") for line in traceback.format_tb(error.__traceback__)[-2:]]
    failures[key] = {
        "what": key,
        "times": 1,
        "message": f"{type(error).__name__}: {error}"[:600],
        "where": [] if isinstance(error, AssertionError) else trace,
        "again": reproducer(kind, spec, ops),
    }
