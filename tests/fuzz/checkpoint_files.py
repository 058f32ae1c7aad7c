"""Mutated checkpoints: each is refused with nothing changed, or loads exactly what it says.

`run(seconds, seed)` goes on until the time is over. A violation is raised with the number of its case, and
`run(seed=..., only=number)` repeats that case alone.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

import hamlearn as hl
from hamlearn.errors import CheckpointError, HamlearnError
from hamlearn.local import LocalLearner
from tests.fuzz.checkpoint_mutations import (
    Parts,
    assemble,
    by_bytes,
    by_raw_header,
    edited,
    parse,
    with_other_tensors,
)
from tests.fuzz.checkpoint_subjects import MAKERS, Learner, Subject, subject, trained


def run(seconds: float = float("inf"), seed: int = 0, cases: int | None = None, only: int | None = None) -> Any:
    """Mutate and load until the time, or the number of cases, is over; answers what happened how often."""
    counts: Counter[str] = Counter(cases=0, refused=0, loaded_equal=0)
    end = time.monotonic() + seconds
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        fuzzer = Fuzzer(Path(folder))
        number = only or 0
        while time.monotonic() < end and (cases is None or number < cases) and (only is None or number == only):
            counts[fuzzer.case(seed, number)] += 1
            counts["cases"] += 1
            number += 1
    return dict(counts)


class Fuzzer:
    """Learners, their whole checkpoints, and a place for the spoiled ones.

    Args:
        folder: Where files are written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint"
        self.home = folder / "home"
        self.whole: dict[str, bytes] = {}
        self.parts: dict[str, Parts] = {}
        self.subjects: dict[str, Subject] = {}
        self.watches: dict[str, Watch] = {}
        for name in MAKERS:
            trained(name, seed=3, steps=6).save(self.path)
            self.whole[name] = self.path.read_bytes()
            self.parts[name] = parse(self.whole[name])
            self.subjects[name] = subject(name)
            self.subjects[name].learner.save(folder / name)
            self.watches[name] = Watch(self.subjects[name].learner)
        self.before = {name: watch.look() for name, watch in self.watches.items()}

    def case(self, seed: int, number: int) -> str:
        """One mutated file; answers whether it was `"refused"` or `"loaded_equal"`."""
        rng = random.Random(f"{seed}/{number}")
        name = rng.choice(list(MAKERS))
        kind, data = self.mutated(rng, name)
        self.path.write_bytes(data)
        found = self.subjects[name]
        learner, watch, before = found.learner, self.watches[name], self.before[name]
        random_state = torch.get_rng_state()
        try:
            learner.load(self.path)
        except CheckpointError:
            unchanged = before == watch.look() and torch.equal(random_state, torch.get_rng_state())
            _require(unchanged, "refused, but something changed", seed, number, kind, name)
            return "refused"
        except Exception as error:
            raise AssertionError(
                _reproducer(f"{type(error).__name__}: {error}", seed, number, kind, name)
            ) from error
        learner.save(self.home)
        wrong = difference(parse(self.home.read_bytes()), parse(data))
        _require(not wrong, f"loaded something else, {wrong}", seed, number, kind, name)
        self._goes_on(found, seed, number, kind)
        # The next case meets the learner as this one did.
        learner.load(self.path.with_name(name))
        self.before[name] = watch.look()
        return "loaded_equal"

    def mutated(self, rng: random.Random, name: str) -> tuple[str, bytes]:
        """A kind of mutation, and the file that it leads to."""
        kind = rng.choices(
            ["bytes", "raw header", "header", "sealed header", "sealed tensors", "foreign"], [3, 1, 1, 4, 3, 0.2]
        )[0]
        whole, (header, tensors) = self.whole[name], self.parts[name]
        if kind == "bytes":
            return kind, by_bytes(rng, whole)
        if kind == "raw header":
            return kind, by_raw_header(rng, whole)
        if kind == "foreign":
            return kind, rng.choice([self.whole[other] for other in MAKERS if other != name])
        if kind == "header":
            sealed = assemble(edited(rng, header), tensors)
            digest = _digest(whole)
            return kind, sealed.replace(_digest(sealed), digest)
        if kind == "sealed header":
            return kind, assemble(edited(rng, header), tensors)
        return kind, assemble(header, with_other_tensors(rng, tensors))

    def _goes_on(self, found: Subject, seed: int, number: int, kind: str) -> None:
        """What loaded is a learner: it takes a sample, or says what is wrong in its own words."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.learner.step(found.sample)
                found.learner.predict(found.sample.u)
        except HamlearnError:
            pass
        except Exception as error:
            text = f"after loading, {type(error).__name__}: {error}"
            raise AssertionError(_reproducer(text, seed, number, kind, found.name)) from error


class Watch:
    """Looks whether a learner is as it was: the bits of the weights, and what is replaced, never written to."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        module = learner.module if isinstance(learner, LocalLearner) else learner.network
        self.bits = [tensor.detach().numpy() for tensor in (*module.parameters(), *module.buffers())]

    def look(self) -> list[Any]:
        """Equal where nothing has changed."""
        learner, reader = self.learner, self.learner._reader
        seen: list[Any] = [array.tobytes() for array in self.bits]
        seen += [reader.position, id(reader.progress)]
        if isinstance(learner, LocalLearner):
            ticker = learner._ticker
            held = [ticker.omega, ticker.t, ticker.updates, *learner._rule.saved(ticker.carry)]
        else:
            order, now = learner._stepper.parts.order, learner._stepper.state
            carry = now.carry
            held = [now.t, now.updates, now.fresh, id(carry.spec), carry.h, carry.z, carry.omega]
            if isinstance(learner.credit, hl.Echo):
                held += [order.since, *((id(token), token.h, token.h_next, token.loss) for token in order.tokens)]
        for leaf in _pytree.tree_leaves(held):
            seen += [(id(leaf), leaf._version)] if isinstance(leaf, torch.Tensor) else [leaf]
        return seen


def difference(one: Parts, other: Parts) -> str:
    """The first thing in which two checkpoints differ; empty where there is none."""
    (header, tensors), (claimed, given) = one, other
    # A token that knows no random state, as one that was taken in evaluation mode, gets one when it is run again.
    drawn = {name for name in tensors.keys() - given.keys() if "/random/" in name}
    if tensors.keys() - drawn != given.keys():
        return f"names {tensors.keys() ^ given.keys()}"
    for name in given:
        tensor = tensors[name]
        if tensor.dtype is not given[name].dtype or not torch.equal(_bits(tensor), _bits(given[name])):
            return f"tensor {name}: {tensor} is not {given[name]}"
    for key in header.keys() | claimed.keys():
        settled = key in ("model", "setting", "hyper") and header[key] == claimed[key]
        if not settled and _text(header.get(key)) != _text(claimed.get(key)):
            return f"{key}: {header.get(key)} is not {claimed.get(key)}"
    return ""


def _text(value: Any) -> str:
    # 2 is as good a number as 2.0.
    return json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _digest(data: bytes) -> bytes:
    at = data.index(b'"sha256":"') + len(b'"sha256":"')
    return data[at : at + 64]


def _require(holds: bool, text: str, seed: int, number: int, kind: str, name: str) -> None:
    if not holds:
        raise AssertionError(_reproducer(text, seed, number, kind, name))


def _reproducer(text: str, seed: int, number: int, kind: str, name: str) -> str:
    return f"{text} ({kind} of {name!r}); again with: run(seed={seed}, only={number})"


if __name__ == "__main__":
    print(run(seconds=60.0, seed=0))
