"""One learner under test, its eager twin and its judge, taken through one operation after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, modules, trees
from tests.fuzz.cases import Op, Spec
from tests.fuzz.judge import Judge
from tests.fuzz.looks import (
    Look,
    Mismatch,
    assert_close,
    assert_finite,
    assert_same,
    assert_trees_close,
    look,
    read,
    same,
)
from tests.fuzz.moves import Moves
from tests.fuzz.refused import Refused
from tests.fuzz.warned import Refusals


class Diverged(Exception):  # noqa: N818
    """The case's own rates are too high for its network: subject and judge leave the numbers together."""


ASCENDED = 1e3
"""With s = +1 the loss is climbed: beyond this, a difference of the last bit grew thirtyfold with every step."""


class Session(Moves, Refused):
    """Three of a kind: the subject by any engine, the twin by `step`, the judge by plain autograd."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        modules.GLOBAL = 1.0
        self.spec, self.folder = spec, folder
        (self.subject, self.loss), (self.twin, self.twin_loss) = cases.learner_of(spec), cases.learner_of(spec)
        self.parts = cases.parts_of(spec)
        for module in self.parts.modules():
            module.train(spec.train)
        setting = {
            "order": spec.order,
            "credit": spec.credit,
            "reset_h": spec.reset_h,
            "integrator": spec.integrator,
        }
        self.judge = Judge(self.parts, cases.loss_of(spec, self.parts), self.subject.hyper, setting)
        self.k = self.number = 0
        self.mode, self.value = spec.train, None
        self.counts: Counter[str] = Counter()
        self.watched: tuple[hl.Learner, Look] | None = None
        self.shared = look(self.subject)["shared"]

    @property
    def tolerance(self) -> float:
        return 2e-11 if self.spec.dtype == "float64" else 5e-4

    @property
    def nearly(self) -> float:
        return 1e-13 if self.spec.dtype == "float64" else 1e-5

    def refused_by_name(self) -> bool:
        """Whether the learner refuses its first samples, with an error of its own and without a trace."""
        learner, _ = self.fresh()
        before = look(learner)
        try:
            for k in range(5):
                learner.step(self.sample(k))
        except hl.errors.HamlearnError:
            return same(look(learner)["t"], before["t"])
        return False

    # Samples

    def sample(self, k: int) -> hl.Sample:
        return cases.sample_of(self.spec, self.parts, k)

    def feed(self, count: int | None = None, bad: dict[int, hl.Sample] | None = None) -> Iterator[hl.Sample]:
        """Samples from the present one on; out of one buffer that is filled again, where the case says so."""
        buffers: dict[Any, torch.Tensor] = {}
        place = 0
        while count is None or place < count:
            if bad and place in bad:
                sample = bad[place]
            else:
                sample = self.sample(self.k + place - sum(p < place for p in bad or ()))
            if self.spec.refill and not (bad and place in bad):
                sample = hl.Sample(
                    self.refilled(buffers, "u", sample.u),
                    None if sample.target is None else self.refilled(buffers, "target", sample.target),
                    tau=sample.tau,
                    boundary=sample.boundary,
                )
            yield sample
            place += 1
        for buffer in buffers.values():
            buffer.fill_(1)

    @staticmethod
    def refilled(buffers: dict[Any, torch.Tensor], key: str, value: torch.Tensor) -> torch.Tensor:
        held = buffers.setdefault(key, torch.empty_like(value))
        return held.copy_(value)

    def seed(self) -> None:
        cases.seed(self.spec, self.number)

    # One operation

    def do(self, op: Op) -> None:
        """Carry out one operation and compare everything."""
        self.number += 1
        kind, *rest = op
        if not self.allowed(kind, rest):
            self.counts["left out"] += 1
            return
        self.counts[kind] += 1
        watched, self.watched = self.watched, None
        getattr(self, f"do_{kind}")(*rest)
        seen = look(self.subject)
        if seen["shared"] != self.shared:
            raise Mismatch(f"weights that were shared as {self.shared} are now shared as {seen['shared']}")
        if self.spec.on_nonfinite != "ignore":
            assert_finite(seen, f"after {op}")
        self.follow()
        if watched is not None:
            assert_same(look(watched[0]), watched[1], "a learner whose copy went on")

    def allowed(self, kind: str, rest: list[Any]) -> bool:
        traits, stored = self.parts.traits, bool(self.judge.tokens)
        if "python" in traits:
            calm = kind in ("step", "run", "compiled")
            return calm or (self.spec.network == "python random" and kind in ("load", "predict", "reset"))
        if kind in ("turn", "mode"):
            return not stored and (
                kind != "turn" or "gain" in traits or self.spec.loss in ("object", "module", "closure")
            )
        if kind == "copy" and rest[0] == "pickle":
            return self.spec.loss != "closure"
        return True

    def follow(self) -> None:
        """Let the judge and the twin go on from exactly where the subject is."""
        seen = look(self.subject)
        judge = self.judge
        if not judge.tokens:
            for name, parameter in self.parts.parameters().items():
                parameter.data = seen[f"theta:{name}"].clone()
        judge.omega = {n: seen[f"omega:{n}"].clone() for n in judge.omega}
        judge.v = {n: seen.get(f"v:{n}", v).clone() for n, v in judge.v.items()}
        if not judge.fresh and self.subject.state.h is not None:
            judge.h, judge.z = trees.cut(self.subject.state.h), trees.cut(self.subject.state.z)
        judge.t = seen["t"]
        path = self.folder / "follow"
        self.subject.save(path)
        self.twin.load(path)
        assert_same(look(self.twin), seen, "a twin that loaded what was saved")

    def compare(self, seen: Look, what: str) -> None:
        """The subject, as it was seen, against the judge."""
        judge, close = self.judge, self.tolerance
        for name, parameter in self.parts.parameters().items():
            assert_close(seen[f"theta:{name}"], parameter, close, f"{what}: theta {name}")
        for name, buffer in self.parts.buffers().items():
            assert_close(seen[f"buffer:{name}"], buffer, close, f"{what}: buffer {name}")
        for name, omega in judge.omega.items():
            assert_close(seen[f"omega:{name}"], omega, close, f"{what}: omega {name}")
        for name, v in judge.v.items() if self.spec.adapts else ():
            assert_close(seen[f"v:{name}"], v, close, f"{what}: v {name}")
        for kind, tree in (("h", judge.h), ("z", judge.z)):
            mine = {n[2:]: v for n, v in seen.items() if n.startswith(f"{kind}:")}
            if mine and tree not in (None, ()):
                for path, value in trees.leaves(tree).items():
                    assert_close(mine[path], value, close, f"{what}: {kind}{path}")
        assert_close(seen["t"], judge.t, 1e-12, f"{what}: t")
        assert_close(seen["updates"], judge.updates, 0.0, f"{what}: updates")

    def judged(self, sample: hl.Sample) -> dict[str, Any]:
        seen = self.judge.step(sample.u, sample.target, sample.tau, sample.boundary)
        self.require_numbers()
        if self.spec.s == 1 and seen.loss is not None and seen.loss > ASCENDED:
            raise Diverged
        return {"t": seen.t, "y": seen.y, "loss": seen.loss, "H": torch.as_tensor(seen.hamiltonian).detach()}

    def require_numbers(self) -> None:
        """End the case where the judge runs away: rounding grows with it, and a learner may refuse or skip."""
        everything = [*self.judge.omega.values(), *(p.detach() for p in self.parts.parameters().values())]
        if not all(bool((value.abs() < 1e6).all()) for value in everything):
            raise Diverged

    def both(self, sample: hl.Sample) -> dict[str, Any]:
        """What the judge sees of a sample that the twin takes too, with the same random numbers."""
        noise = torch.get_rng_state()
        seen = self.judged(sample)
        torch.set_rng_state(noise)
        self.twin.step(sample)
        return seen

    def compare_report(self, got: dict[str, Any], want: dict[str, Any], what: str) -> None:
        assert_trees_close(got["y"], want["y"], self.tolerance, f"{what}: y")
        if (got["loss"] is None) != (want["loss"] is None):
            raise Mismatch(f"{what}: loss {got['loss']}, expected {want['loss']}")
        if want["loss"] is not None:
            assert_close(got["loss"], want["loss"], self.tolerance, f"{what}: loss")
        assert_close(got["t"], want["t"], 1e-12, f"{what}: t of the report")
        assert_close(got["H"].reshape(()), want["H"].reshape(()), 10 * self.tolerance, f"{what}: hamiltonian")

    # Learning

    def do_step(self, count: int) -> None:
        def steps() -> Iterator[hl.StepReport]:
            for sample in self.feed(count):
                yield self.subject.step(sample)

        self.learn(steps(), count, "end", exact=True)

    def do_run(self, count: int, mode: str) -> None:
        self.learn(self.subject.run(self.feed(), max_steps=count), count, mode, exact=True)

    def do_compiled(self, count: int, chunk: int, mode: str) -> None:
        # The engines draw different random numbers: tests/compiled/test_random.py has the judge of those.
        engine: Any = "eager" if "random" in self.parts.traits else "compiled"
        run = self.subject.run(self.feed(), max_steps=count, engine=engine, chunk=chunk)
        self.learn(run, count, mode, exact=False)

    def learn(self, reports: Iterator[hl.StepReport], count: int, mode: str, exact: bool) -> None:
        """Take reports, then let judge and twin take the same samples, and compare all three."""
        gathered: list[Any] = []
        middle: Look | None = None
        self.seed()
        with self.refusals() as refused:
            try:
                for place, report in enumerate(reports):
                    if place == 0:
                        refused.first()
                    gathered.append(report if mode == "late" else read(report))
                    if place == count // 2 and mode == "look":
                        middle = look(self.subject)
                    if place == count // 2 and mode == "leave":
                        break
            except hl.errors.NonFiniteError as error:
                self.diverged(count, error)
            del reports
        if mode == "late":
            gathered = [read(report) for report in gathered]
        seen, noise = look(self.subject), torch.get_rng_state()
        taken = len(gathered)
        if taken != (count // 2 + 1 if mode == "leave" else count):
            raise Mismatch(f"{taken} reports of {count} samples in mode {mode!r}")
        self.seed()
        for place, got in enumerate(gathered):
            self.compare_report(got, self.judged(self.sample(self.k + place)), f"sample {self.k + place}")
            if place == count // 2 and middle is not None:
                self.compare(middle, f"in the middle, after sample {self.k + place}")
        self.compare(seen, f"after sample {self.k + taken - 1}")
        self.seed()
        others = [read(self.twin.step(self.sample(self.k + place))) for place in range(taken)]
        self.k += taken
        if exact or refused.from_start:
            assert_same(seen, look(self.twin), "eager against steps")
            for place, (one, other) in enumerate(zip(gathered, others, strict=True)):
                assert_same(one, other, f"report {place} of eager against steps")
        if not same(noise, torch.get_rng_state()) and not (mode == "leave" and not exact):
            raise Mismatch("PyTorch's generator was left elsewhere than steps leave it")

    def diverged(self, count: int, error: hl.errors.NonFiniteError) -> None:
        """End the case where the judge leaves the numbers too; else the error was wrong."""
        self.seed()
        for place in range(count):
            self.judged(self.sample(self.k + place))
        raise error

    def refusals(self) -> Any:
        return Refusals(self.counts)

    def do_scan(self, count: int) -> None:
        """Whole tensors at once: the judge's steps, and those of a compiled run of another learner in its state.

        Nearly the same: with a transformer encoder the last bit of two equal learners differs in some runs and not
        in others, and why has not been found out.
        """
        samples = [self.sample(self.k + place) for place in range(count)]
        tau = self.subject.hyper.tau
        if (self.spec.uneven and callable(tau)) or "random" in self.parts.traits:
            self.do_compiled(count, 256, "end")
            return
        given: dict[str, Any] = {"boundary": torch.tensor([s.boundary for s in samples])}
        if self.spec.uneven:
            given["tau"] = torch.tensor([tau if s.tau is None else s.tau for s in samples], dtype=torch.float64)
        known = [s.target is not None for s in samples]
        if any(known):
            example = samples[known.index(True)].target
            unknown = trees.apply(lambda x: torch.full_like(x, -1), example)
            given["target"] = stacked([unknown if s.target is None else s.target for s in samples])
            given["known"] = None if all(known) else torch.tensor(known)
        other, _ = self.fresh()
        other.load_state_dict(self.subject.state_dict())
        self.seed()
        with self.refusals():
            try:
                trace = self.subject.scan(stacked([s.u for s in samples]), **given)
            except hl.errors.NonFiniteError as error:
                self.diverged(count, error)
        seen = look(self.subject)
        self.seed()
        with self.refusals():
            rows = [read(report) for report in other.run(samples, max_steps=count, engine="compiled")]
        assert_nearly(seen, look(other), self.nearly, "a scan against a compiled run")
        self.seed()
        for place, sample in enumerate(samples):
            at, want = f"scan, sample {self.k + place}", self.judged(sample)
            got = {
                "t": trace.t[place].item(),
                "y": trees.apply(lambda x, n=place: x[n], trace.y),
                "loss": trace.loss[place] if known[place] else None,
                "H": trace.hamiltonian[place],
            }
            self.compare_report(got, want, at)
            assert_nearly(
                trees.leaves(got["y"]) | {"H": got["H"]},
                trees.leaves(rows[place]["y"]) | {"H": rows[place]["H"].to(got["H"].dtype)},
                self.nearly,
                f"{at} against a compiled run",
            )
        self.k += count
        self.compare(seen, f"after a scan of {count}")


def assert_nearly(got: Look, want: Look, tolerance: float, what: str) -> None:
    """The same names, and values that differ by rounding at most."""
    if got.keys() != want.keys():
        raise Mismatch(f"{what}: {sorted(got.keys() ^ want.keys())} are in one and not in the other")
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            assert_close(got[name], value, tolerance, f"{what}: {name}")
        elif got[name] != value:
            raise Mismatch(f"{what}: {name} is {got[name]}, expected {value}")


def stacked(values: list[Any]) -> Any:
    """Trees of one form as one tree, time first."""
    return trees.apply(lambda *leaves: torch.stack(leaves), *values)
