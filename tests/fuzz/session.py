"""One learner under test, its eager twin and its judge, taken through one operation after the other."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, modules, trees, zoo
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

Errors = hl.errors.HamlearnError
LIBRARY = str(Path(hl.__file__).parent)


class Diverged(Exception):  # noqa: N818
    """The case's own rates are too high for its network: subject and judge leave the numbers together."""


class Session:
    """Three of a kind: the subject by any engine, the twin by `step`, the judge by plain autograd."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        modules.GLOBAL["gain"] = 1.0
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

    def refused_by_name(self) -> bool:
        """Whether the learner refuses its first samples, with an error of its own and without a trace."""
        learner, _ = self.fresh()
        before = look(learner)
        try:
            for k in range(5):
                learner.step(self.sample(k))
        except Errors:
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
        torch.manual_seed(self.spec.seed * 1009 + self.number)
        random.seed(self.spec.seed * 1009 + self.number)

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
        if kind in ("turn", "mode", "freeze"):
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
        for kind, tree in (("h", judge.h), ("z", judge.z)):
            mine = {n[2:]: v for n, v in seen.items() if n.startswith(f"{kind}:")}
            if mine and tree not in (None, ()):
                for path, value in trees.leaves(tree).items():
                    assert_close(mine[path], value, close, f"{what}: {kind}{path}")
        assert_close(seen["t"], judge.t, 1e-12, f"{what}: t")
        assert_close(seen["updates"], judge.updates, 0.0, f"{what}: updates")

    def judged(self, sample: hl.Sample) -> dict[str, Any]:
        seen = self.judge.step(sample.u, sample.target, sample.tau, sample.boundary)
        return {"t": seen.t, "y": seen.y, "loss": seen.loss, "H": torch.as_tensor(seen.hamiltonian).detach()}

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
        run = self.subject.run(self.feed(), max_steps=count, engine="compiled", chunk=chunk)
        self.learn(run, count, mode, exact=False)

    def learn(self, reports: Iterator[hl.StepReport], count: int, mode: str, exact: bool) -> None:
        """Take reports, then let judge and twin take the same samples, and compare all three."""
        gathered: list[Any] = []
        middle: Look | None = None
        self.seed()
        with self.refusals() as refused:
            try:
                for place, report in enumerate(reports):
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
        if exact or refused:
            assert_same(seen, look(self.twin), "eager against steps")
            for place, (one, other) in enumerate(zip(gathered, others, strict=True)):
                assert_same(one, other, f"report {place} of eager against steps")
        if not same(noise, torch.get_rng_state()) and not (mode == "leave" and refused):
            raise Mismatch("PyTorch's generator was left elsewhere than steps leave it")

    def diverged(self, count: int, error: hl.errors.NonFiniteError) -> None:
        """End the case where the judge leaves the numbers too; else the error was wrong."""
        self.seed()
        for place in range(count):
            self.judged(self.sample(self.k + place))
        everything = [*self.judge.omega.values(), *(p.detach() for p in self.parts.parameters().values())]
        if all(bool((value.abs() < 1e30).all()) for value in everything):
            raise error
        raise Diverged

    def refusals(self) -> Any:
        return Refusals(self.counts)

    # What must move nothing, or everything

    def do_predict(self) -> None:
        u = self.sample(self.k).u
        before = look(self.subject)
        self.seed()
        noise = torch.get_rng_state()
        y = self.subject.predict(u)
        if not same(noise, torch.get_rng_state()):
            raise Mismatch("predict drew a random number")
        assert_same(look(self.subject), before, "predict")
        self.seed()
        self.judge.own_buffers()
        assert_trees_close(y, self.judge.predict(u), self.tolerance, "predict")

    def fresh(self) -> tuple[hl.Learner, Any]:
        """A learner of the same kind with other weights, and its loss."""
        made, loss = cases.learner_of(self.spec, seed=self.spec.seed + 77)
        made.network.train(self.mode)
        if self.value is not None:
            self.turn(made.network, loss)
        return made, loss

    def do_load(self, where: str) -> None:
        if where == "value" and not hasattr(self.subject, "state_dict"):
            where = "fresh"
        before, path = look(self.subject), self.folder / "saved"
        self.subject.save(path)
        assert_same(look(self.subject), before, "save")
        if where == "fresh":
            self.subject, self.loss = self.fresh()
        elif where == "earlier":
            for place in range(2):
                self.subject.step(self.sample(self.k + 100 + place))
        if where == "value":
            value = self.subject.state_dict()
            self.subject, self.loss = self.fresh()
            self.subject.load_state_dict(value)
        else:
            self.subject.load(path)
        assert_same(look(self.subject), before, f"load into {where}")

    def do_copy(self, how: str) -> None:
        before = look(self.subject)
        try:
            both = (self.subject, self.loss)
            made, loss = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
        except Errors as error:
            self.counts[f"{how} refused: {type(error).__name__}"] += 1
            assert_same(look(self.subject), before, f"a refused {how}")
            return
        assert_same(look(self.subject), before, f"the original of a {how}")
        assert_same(look(made), before, how)
        self.watched = (self.subject, before)
        self.subject, self.loss = made, loss

    def do_reset(self) -> None:
        for one in (self.subject, self.twin, self.judge):
            one.reset()

    def do_mode(self, training: bool) -> None:
        self.mode = training
        for network in (self.subject.network, self.twin.network, *self.parts.modules()):
            network.train(training)

    def do_turn(self, value: float) -> None:
        self.value = value
        for network, loss in (
            (self.subject.network, self.loss),
            (self.twin.network, self.twin_loss),
            *((module, self.judge.loss) for module in self.parts.modules()),
        ):
            self.turn(network, loss)

    def turn(self, network: Any, loss: Any) -> None:
        zoo.turn(network, self.value)
        if isinstance(loss, modules.Weighted):
            loss.weight, loss.config["shift"] = self.value, 0.1 * self.value
        elif isinstance(loss, modules.WeightedModule):
            loss.weight = self.value
            loss.scale.fill_(2 * self.value)
        elif hasattr(loss, "held"):
            loss.held["weight"] = self.value

    def do_freeze(self, index: int) -> None:
        """A weight that is frozen in mid-life: refused by name, or left alone; then set free again."""
        names = list(self.judge.learned())
        if len(names) < 2:
            return
        name = names[index % len(names)]
        self.free(name, False)
        before = look(self.subject)
        try:
            self.seed()
            self.subject.step(self.sample(self.k))
        except Errors as error:
            self.counts[f"freeze refused: {type(error).__name__}"] += 1
            assert_same(look(self.subject), before, "a refused freeze")
            self.free(name, True)
            return
        after = look(self.subject)
        if not same(after[f"theta:{name}"], before[f"theta:{name}"]):
            raise Mismatch(f"{name} was frozen and has moved")
        held = self.judge.omega.pop(name)
        self.seed()
        self.judged(self.sample(self.k))
        self.k += 1
        self.compare(after, f"{name} frozen")
        self.free(name, True)
        self.judge.omega[name] = after.get(f"omega:{name}", torch.zeros_like(held))
        before = look(self.subject)
        try:
            self.seed()
            self.subject.step(self.sample(self.k))
        except Errors as error:
            raise Mismatch(f"{name} was frozen without a word, and cannot be set free: {error}") from error
        self.seed()
        self.judged(self.sample(self.k))
        self.k += 1
        self.compare(look(self.subject), f"{name} set free again")

    def free(self, name: str, flag: bool) -> None:
        for parameters in (dict(self.subject.network.named_parameters()), self.parts.parameters()):
            parameters[name].requires_grad_(flag)

    # What must be refused

    def bad_sample(self, kind: str) -> hl.Sample | None:
        sample = self.sample(self.k)
        generator = torch.Generator().manual_seed(self.k)
        dtype, integers = self.spec.torch_dtype, isinstance(self.parts.feed, int)
        target = self.parts.draw_target(generator, self.spec.batch, dtype)
        u = sample.u
        if kind == "u shape" and not integers:
            return hl.Sample(torch.zeros(*u.shape[:-1], u.shape[-1] + 7, dtype=dtype), sample.target)
        if kind == "target shape":
            wrong = (
                target.new_zeros(*target.shape, 7)
                if self.parts.target == "class"
                else torch.zeros(*target.shape[:-1], target.shape[-1] + 1, dtype=dtype)
            )
            return hl.Sample(u, wrong)
        if kind == "u dtype":
            other = torch.float32 if dtype == torch.float64 or integers else torch.float64
            wrong = u.to(other)
            return None if self.taken_by_plain_modules(wrong) else hl.Sample(wrong, sample.target)
        if kind.startswith("tau"):
            return hl.Sample(u, sample.target, tau={"zero": 0.0, "nan": float("nan"), "text": "soon"}[kind[4:]])
        if kind == "index" and integers:
            return hl.Sample(torch.full_like(u, 5 + self.k % 3 if self.k % 2 else -7), sample.target)
        if kind == "class" and self.parts.target == "class":
            return hl.Sample(u, torch.full_like(target, 5 if self.k % 2 else -3))
        if kind == "nan u" and not integers and self.spec.on_nonfinite != "ignore":
            return hl.Sample(torch.full_like(u, float("nan")), sample.target, boundary=sample.boundary)
        if kind == "inf target" and self.parts.target != "class" and self.spec.on_nonfinite != "ignore":
            return hl.Sample(u, torch.full_like(target, float("inf")), boundary=sample.boundary)
        return None

    def taken_by_plain_modules(self, u: torch.Tensor) -> bool:
        """Whether PyTorch itself has nothing against this input."""
        parts = cases.parts_of(self.spec)
        for module in parts.modules():
            module.train(self.mode)
        try:
            h = () if parts.f_h is None else parts.h0(self.sample(self.k).u)
            parts.f_y(u, () if parts.f_h is None else parts.f_h(u, h))
        except (RuntimeError, IndexError, TypeError):
            return False
        return True

    def do_bad(self, kind: str, engine: str, place: int) -> None:
        bad = self.bad_sample(kind)
        if bad is None:
            return
        self.counts[f"bad {kind}"] += 1
        place = 0 if engine == "step" else place
        reports, error, before = [], None, look(self.subject)
        self.seed()
        with self.refusals() as refused:
            try:
                feed = self.feed(bad={place: bad})
                if engine == "step":
                    reports.append(read(self.subject.step(next(feed))))
                else:
                    more = {"engine": "compiled", "chunk": 3} if engine == "compiled" else {}
                    for report in self.subject.run(feed, max_steps=place + 1, **more):
                        reports.append(read(report))
            except Errors as found:
                error = found
        exact = engine != "compiled" or bool(refused)
        if error is not None and len(reports) != place:
            raise Mismatch(f"{len(reports)} reports came before the error, {place} were due")
        self.seed()
        for report in reports[:place]:
            self.compare_report(report, self.judged(self.sample(self.k)), f"sample {self.k}")
            self.twin.step(self.sample(self.k))
            self.k += 1
        seen = look(self.subject)
        if error is not None:
            if self.spec.on_nonfinite == "skip" and isinstance(error, hl.errors.NonFiniteError):
                raise Mismatch("on_nonfinite='skip' raised NonFiniteError") from error
        elif kind == "nan u" and not reports[-1]["skipped"]:
            assert_finite(seen, "a sample that is not a number")
            self.judge.step(bad.u, bad.target, bad.tau, bad.boundary)
            self.twin.step(bad)
        elif kind in ("nan u", "inf target") and self.spec.on_nonfinite == "skip":
            if bad.boundary:
                self.judge.reset()
                self.judge.h = self.judge.z = None
                self.twin.step(bad)
        else:
            raise Mismatch(f"a sample with a wrong {kind} was accepted by {engine}")
        self.compare(seen, f"after a refused sample ({kind}, {engine})")
        if exact:
            if not place and not bad.boundary and error is not None:
                assert_same(seen, before, f"a refused sample ({kind}, {engine})")
            assert_same(
                seen, look(self.twin), f"a refused sample ({kind}, {engine}) against one that was not shown"
            )

    def do_overflow(self, engine: str) -> None:
        """A rate so high that the weights leave the numbers: not kept, whatever else is said."""
        if self.spec.on_nonfinite == "ignore" or self.parts.target == "class" or self.spec.dtype != "float64":
            return
        learner, _ = cases.learner_of(replace(self.spec, beta="huge"))
        samples = []
        for k in range(9):
            sample = self.sample(k)
            target = None if sample.target is None else 1e6 + sample.target
            samples.append(hl.Sample(sample.u, target, tau=sample.tau, boundary=sample.boundary))
        with self.refusals():
            try:
                if engine == "step":
                    for sample in samples:
                        learner.step(sample)
                        assert_finite(look(learner), "weights that overflow")
                else:
                    more = {"engine": "compiled", "chunk": 4} if engine == "compiled" else {}
                    for _ in learner.run(iter(samples + samples), max_steps=9, **more):
                        pass
            except hl.errors.NonFiniteError:
                self.counts["overflow refused"] += 1
        assert_finite(look(learner), "weights that overflow")

    def do_scan(self, count: int) -> None:
        """Whole tensors at once, where the library has that; else as a compiled run."""
        if not hasattr(self.subject, "scan") or self.spec.labels != "all" or self.spec.uneven:
            self.do_compiled(count, 256, "end")
            return
        samples = [self.sample(self.k + place) for place in range(count)]
        u, target = (torch.stack([getattr(s, name) for s in samples]) for name in ("u", "target"))
        boundary = torch.tensor([s.boundary for s in samples])
        self.seed()
        with self.refusals():
            trace = self.subject.scan(u, target, boundary=boundary)
        seen = look(self.subject)
        self.seed()
        for place, sample in enumerate(samples):
            want = self.judged(sample)
            at = f"scan, sample {self.k + place}"
            y = trees.apply(lambda x, n=place: x[n], trace.y)
            assert_trees_close(y, want["y"], self.tolerance, f"{at}: y")
            assert_close(trace.loss[place], want["loss"], self.tolerance, f"{at}: loss")
            assert_close(trace.hamiltonian[place], want["H"].reshape(()), 10 * self.tolerance, f"{at}: H")
        self.k += count
        self.compare(seen, f"after a scan of {count}")

    # Interrupts

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
            lines = traced(lambda: act(other), None)
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
            sample = self.sample(self.k + place)
            self.twin.step(sample)
            self.judged(sample)
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


class Refusals(warnings.catch_warnings):
    """Counts the compiled engine's refusals by name; every other warning is an error."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(record=True)
        self.counts, self.reasons = counts, []

    def __enter__(self) -> list[str]:
        self.log = super().__enter__()
        warnings.simplefilter("always")
        return self.reasons_of(self)

    @staticmethod
    def reasons_of(owner: Refusals) -> Any:
        return Reasons(owner)

    def __exit__(self, *details: Any) -> None:
        log = list(self.log)
        super().__exit__(*details)
        for warning in log:
            text = str(warning.message)
            if warning.category is RuntimeWarning and text.startswith("engine='compiled' goes on eagerly"):
                self.counts["refused to record"] += 1
                self.reasons.append(text)
            elif details[0] is None:
                raise Mismatch(f"an unexpected warning: {text}")


class Reasons:
    """True where a recording was refused; known once the block has ended."""

    def __init__(self, owner: Refusals) -> None:
        self.owner = owner

    def __bool__(self) -> bool:
        return bool(self.owner.reasons)
