"""Cases in which a learner must follow `torch.optim.SGD` and BackPropagation (Through Time)."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, trees, zoo
from tests.fuzz.cases import Op, Spec
from tests.fuzz.looks import Mismatch, assert_close, same
from tests.fuzz.warned import Refusals


def draw(seed: int, variants: int = 60) -> tuple[Spec, list[Op]]:
    r = Random(seed)
    spec = cases.draw_spec(r, seed, variants)
    plain = zoo.make(spec.network, 0, (1,), spec.variant, torch.float64)
    recurs = plain.f_h is not None and plain.lasts and plain.transition == "next"
    spec = replace(
        spec,
        dtype="float64",
        order="sequential",
        credit=("Echo", None, r.choice([None, 4]), "sequence") if recurs else ("Cleared",),
        reset_h="boundary" if recurs or plain.f_h is None else "sample",
        integrator="Euler",
        hyper="sgd",
        s=-1,
        beta="number",
        phi_first=False,
        adapts=False,
        decays=False,
        uneven=False,
        loss=r.choice(["function", "huber", "l1"]),
        period=r.choice([3, 7, 11]) if recurs else spec.period,
        labels=r.choice(["all", "last"]) if recurs and spec.credit[-2:-1] != (4,) else "all",
        network=spec.network if recurs or not plain.lasts else "mlp",
    )
    if spec.network == "mlp":
        spec = replace(spec, credit=("Cleared",), reset_h="boundary", labels="all")
    if spec.credit[0] == "Echo" and spec.credit[2] is not None:
        spec = replace(spec, labels="all")
    kinds = [("step", 6), ("compiled", 8, 3), ("compiled", 20, 256), ("run", 5)]
    return spec, [r.choice(kinds) for _ in range(r.randint(1, 3))]


class BackPropagation:
    """What a PyTorch user would write: unroll, sum the losses, go back, step."""

    def __init__(self, spec: Spec, hyper: hl.Hyper, seed: int) -> None:
        self.spec, self.parts = spec, cases.parts_of(spec)
        for module in self.parts.modules():
            module.train(spec.train)
        self.loss = cases.loss_of(spec, self.parts)
        r = Random(seed + 1)
        r.choice([0.01, 0.05])
        tau = r.choice([1.0, 0.5])
        momentum, dampening = r.choice([0.0, 0.7]), r.choice([0.0, 0.4])
        again = hl.Hyper.from_sgd(lr=0.05, momentum=momentum, dampening=dampening, tau=tau)
        if (again.eta, again.phi, again.tau, again.beta) != (hyper.eta, hyper.phi, hyper.tau, hyper.beta):
            raise Mismatch("the settings of SGD are not those of the learner")
        self.learned = [p for p in self.parts.parameters().values() if p.requires_grad]
        self.sgd = torch.optim.SGD(self.learned, lr=0.05, momentum=momentum, dampening=dampening)
        for parameter in self.learned:
            parameter.grad = torch.zeros_like(parameter)
        self.h: Any = None
        self.total: Any = 0.0
        self.count = 0

    def take(self, sample: hl.Sample) -> None:
        parts = self.parts
        if parts.f_h is None:
            y = parts.f_y(sample.u, ())
        else:
            if self.h is None or self.spec.reset_h == "sample":
                self.h = parts.h0(sample.u)
            self.h = parts.f_h(sample.u, self.h)
            y = parts.f_y(sample.u, self.h)
        if sample.target is not None:
            self.total = self.total + self.loss(y, sample.target)
        self.count += 1
        echo = self.spec.credit[0] == "Echo"
        if not echo or sample.boundary or self.count == self.spec.credit[2]:
            self.sgd.zero_grad(set_to_none=False)
            self.total.backward()
            self.sgd.step()
            self.total, self.count = 0.0, 0
            self.h = trees.cut(self.h)
        if sample.boundary:
            self.h = None


def play(spec: Spec, ops: list[Op]) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        learner, _ = cases.learner_of(spec)
    except hl.errors.ConfigError as error:
        return Counter({f"not allowed: {error}"[:90]: 1})
    judge = BackPropagation(spec, learner.hyper, spec.seed)
    bits = judge.parts.f_h is None and "buffers" not in judge.parts.traits
    k = 0
    for number, (kind, count, *rest) in enumerate(ops):
        samples = [cases.sample_of(spec, judge.parts, k + place) for place in range(count)]
        cases.seed(spec, number)
        refusal = None
        with Refusals(counts) as refused, contextlib.suppress(hl.errors.NonFiniteError):
            refusal = True
            if kind == "step":
                for sample in samples:
                    learner.step(sample)
            else:
                more = {"engine": "compiled", "chunk": rest[0]} if kind == "compiled" else {}
                for place, _ in enumerate(learner.run(iter(samples + samples), max_steps=count, **more)):
                    if place == 0:
                        refused.first()
            refusal = None
        cases.seed(spec, number)
        for sample in samples:
            judge.take(sample)
        if not all(bool((p.detach().abs() < 1e30).all()) for p in judge.parts.parameters().values()):
            return counts + Counter({"diverged": 1})
        if refusal:
            raise Mismatch(f"a step was refused after {k} samples, and SGD goes on")
        k += count
        counts[kind] += 1
        bits = bits and (kind != "compiled" or refused.from_start)
        named = dict(learner.network.named_parameters())
        for name, parameter in judge.parts.parameters().items():
            if bits and not same(named[name].detach(), parameter.detach()):
                raise Mismatch(f"{name} does not follow SGD bit for bit after {k} samples")
            assert_close(named[name], parameter, 1e-11, f"SGD after {k} samples: {name}")
    return counts
