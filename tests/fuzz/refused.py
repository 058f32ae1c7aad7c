"""Samples that must be refused, or skipped, without a trace."""

from __future__ import annotations

from dataclasses import replace

import torch

import hamlearn as hl
from tests.fuzz import cases
from tests.fuzz.looks import Mismatch, assert_finite, assert_same, look, read

Errors = hl.errors.HamlearnError


class Refused:
    """Part of a session: bad samples by every way into a learner."""

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
        engine = "run" if "random" in self.parts.traits and engine == "compiled" else engine
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
                        if not reports:
                            refused.first()
                        reports.append(read(report))
            except Errors as found:
                error = found
        exact = engine != "compiled" or refused.from_start
        if error is not None and len(reports) != place:
            raise Mismatch(f"{len(reports)} reports came before the error, {place} were due")
        self.seed()
        for report in reports[:place]:
            self.compare_report(report, self.both(self.sample(self.k)), f"sample {self.k}")
            self.k += 1
        seen = look(self.subject)
        if error is not None:
            if self.spec.on_nonfinite == "skip" and isinstance(error, hl.errors.NonFiniteError):
                raise Mismatch("on_nonfinite='skip' raised NonFiniteError") from error
        elif kind == "nan u" and not reports[-1]["skipped"]:
            assert_finite(seen, "a sample that is not a number")
            self.both(bad)
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
