"""Cases of `hl.Population`: each member ends where it would have ended alone; unlike members are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import nn

import hamlearn as hl
from tests.fuzz import cases, modules, trees, zoo
from tests.fuzz.cases import Op, Spec
from tests.fuzz.looks import Mismatch, assert_close, look
from tests.fuzz.warned import Refusals

KINDS = ("tanh or sigmoid", "gain", "slope", "loss", "hook", "frozen", "mode", "order of layers")


def draw(seed: int, variants: int = 60) -> tuple[Spec, list[Op]]:
    r = Random(seed)
    spec = cases.draw_spec(r, seed, variants)
    plain = zoo.make(spec.network, 0, (1,), spec.variant, torch.float64)
    credit = spec.credit if spec.credit[0] != "Echo" else ("Forward",)
    if plain.traits & {"python", "random"} or plain.learned_h0 is not None:
        spec = replace(spec, network="rnn", batch=(1,))
    spec = replace(spec, credit=credit, dtype="float64", s=-1)
    ops: list[Op] = [("run", r.choice([3, 8]), r.choice([1, 3, 256]), r.choice(["end", "leave", "eager"]))]
    ops += [("run", r.choice([3, 8]), r.choice([2, 256]), r.choice(["end", "leave", "step"]))]
    if r.random() < 0.5:
        ops.append(("bad", r.choice(["u shape", "tau", "nan"]), r.choice(["compiled", "step"])))
    if r.random() < 0.4:
        ops.append(("unlike", r.choice(KINDS)))
    return spec, ops


def member(spec: Spec, parts: Any, scale: float, seed: int) -> hl.Learner:
    """A learner of the case whose φ is scaled."""
    made, _ = cases.learner_of(spec, seed=seed)
    hyper = hl.Hyper(**{**vars(made.hyper), "phi": Scaled(made.hyper.phi, scale)})
    return hl.Learner(
        made.network,
        cases.loss_of(spec, parts),
        hyper,
        order=spec.order,
        credit=cases.credit_of(spec),
        reset_h=spec.reset_h,
        integrator=getattr(hl, spec.integrator)(),
        on_nonfinite=spec.on_nonfinite,
    )


def play(spec: Spec, ops: list[Op]) -> Counter[str]:
    counts: Counter[str] = Counter()
    modules.GLOBAL = 1.0
    seeds = (3, 5)
    rates = [1.0, 0.5]

    parts = cases.parts_of(spec)
    order = [(scale, seed) for scale in rates for seed in seeds]
    given = iter(order)

    def make(hyper: hl.Hyper) -> hl.Learner:
        scale, seed = next(given)
        return member(spec, parts, scale, seed)

    try:
        alone = [member(spec, parts, scale, seed) for scale, seed in order]
    except hl.errors.ConfigError as error:
        return Counter({f"not allowed: {error}"[:90]: 1})
    population = hl.Population(make, hyper=[hl.Hyper(), hl.Hyper()], seeds=seeds)
    k = 0

    def check(what: str) -> None:
        for number, (member, single) in enumerate(zip(population.members, alone, strict=True)):
            one, other = look(member), look(single)
            for name, value in other.items():
                if isinstance(value, torch.Tensor) or name == "t":
                    assert_close(one[name], value, 2e-11, f"{what}: {name} of member {number}")

    for kind, *rest in ops:
        counts[kind] += 1
        if kind == "run":
            count, chunk, mode = rest
            samples = [cases.sample_of(spec, parts, k + place) for place in range(count)]
            reports = []
            with Refusals(counts):
                if mode == "step":
                    reports = [population.step(sample) for sample in samples]
                else:
                    engine = "eager" if mode == "eager" else "compiled"
                    feed = refilled(samples * 2) if spec.refill else iter(samples * 2)
                    for place, report in enumerate(population.run(feed, count, engine=engine, chunk=chunk)):
                        reports.append(report)
                        if mode == "leave" and place == count // 2:
                            break
            for sample, report in zip(samples, reports, strict=False):
                singles = [learner.step(sample) for learner in alone]
                for number, one in enumerate(singles):
                    mine = trees.apply(lambda x, n=number: x[n], report.y)
                    for path, value in trees.leaves(one.y).items():
                        assert_close(trees.leaves(mine)[path], value, 2e-11, f"y of member {number}")
                    if one.loss is not None:
                        assert_close(report.loss[number], one.loss, 2e-11, f"loss of member {number}")
            k += len(reports)
            check(f"after {len(reports)} samples, {mode}")
        elif kind == "bad":
            bad(population, spec, parts, k, *rest, counts)
            check(f"after a refused sample, {rest}")
        else:
            unlike(rest[0])
    return counts


def refilled(samples: list[hl.Sample]) -> Any:
    buffers: dict[str, torch.Tensor] = {}
    for s in samples:
        u = buffers.setdefault("u", torch.empty_like(s.u)).copy_(s.u)
        target = s.target
        if target is not None:
            target = buffers.setdefault("target", torch.empty_like(target)).copy_(target)
        yield hl.Sample(u, target, tau=s.tau, boundary=s.boundary)


class Scaled:
    """φ times a number, so that members differ."""

    def __init__(self, phi: Any, scale: float) -> None:
        self.phi, self.scale = phi, scale

    def __call__(self, t: float) -> float:
        return self.scale * (self.phi(t) if callable(self.phi) else self.phi)


def bad(
    population: hl.Population, spec: Spec, parts: Any, k: int, kind: str, engine: str, counts: Counter[str]
) -> None:
    sample = cases.sample_of(spec, parts, k)
    if kind == "u shape" and not isinstance(parts.feed, int):
        sample = hl.Sample(torch.zeros(*sample.u.shape[:-1], sample.u.shape[-1] + 7, dtype=sample.u.dtype))
    elif kind == "nan" and parts.target != "class" and spec.on_nonfinite == "raise":
        target = parts.draw_target(torch.Generator(), spec.batch, spec.torch_dtype)
        sample = hl.Sample(sample.u, torch.full_like(target, float("nan")))
    else:
        sample = hl.Sample(sample.u, sample.target, tau=-1.0)
    try:
        with Refusals(counts):
            if engine == "step":
                population.step(sample)
            else:
                list(population.run([sample], chunk=2))
    except hl.errors.HamlearnError:
        return
    raise Mismatch(f"a population took a sample that is wrong: {kind}, {engine}")


def unlike(kind: str) -> None:
    """Members that compute different things with weights of one shape: refused, or each as it is alone."""

    def member(number: int) -> hl.Learner:
        act: nn.Module = nn.Tanh()
        if kind == "tanh or sigmoid" and number:
            act = nn.Sigmoid()
        if kind == "slope":
            act = nn.LeakyReLU(0.1 + 0.3 * number)
        net = nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3)).double()
        if kind == "order of layers":
            net = nn.Sequential(*([net[0], net[2], act] if number else [net[0], act, net[2]]))
            net = nn.Sequential(net[0], net[1], net[2])
        if kind == "gain":
            net = nn.Sequential(modules.Gain(3, 3, "attribute"), nn.Linear(3, 3)).double()
            net[0].gain = 1.0 + number
        if kind == "hook" and number:
            net[0].register_forward_hook(modules.ScaleHook())
        if kind == "frozen" and number:
            net[0].weight.requires_grad_(False)
        if kind == "mode":
            net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double().train(not number)
        loss: Any = nn.functional.mse_loss
        if kind == "loss":
            loss = modules.Weighted(loss)
            loss.weight = 1.0 + number
        return hl.Learner(hl.Network.feedforward(net), loss, hl.Hyper(beta=0.05, eta=0.5), order="sequential")

    def build() -> list[hl.Learner]:
        made = []
        for number in range(2):
            torch.manual_seed(1)
            made.append(member(number))
        return made

    alone, given = build(), iter(build())
    try:
        population = hl.Population(lambda hyper: next(given), hyper=[hl.Hyper()], seeds=(1, 1))
    except hl.errors.ConfigError:
        return
    torch.manual_seed(0)
    samples = [hl.Sample(torch.randn(4, 3).double(), torch.randn(4, 3).double()) for _ in range(5)]
    try:
        with Refusals(Counter()):
            for _ in population.run(samples):
                pass
    except hl.errors.HamlearnError:
        return
    for number, (one, other) in enumerate(zip(population.members, alone, strict=True)):
        for sample in samples:
            other.step(sample)
        for name, parameter in other.network.named_parameters():
            mine = dict(one.network.named_parameters())[name]
            assert_close(
                mine, parameter, 1e-11, f"member {number} of a population of unlike members ({kind}): {name}"
            )
