"""Cases of `hl.Population` with a stream for each member: uneven, poisoned, left, looked at, saved and resumed."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, modules, populations, trees
from tests.fuzz.cases import Op, Spec
from tests.fuzz.looks import Mismatch, assert_close, look

FAULTS = ("none", "none", "nan", "nan", "tau", "shape", "infinite")
ORDER = [(scale, seed) for scale in (1.0, 0.5) for seed in (3, 5)]


def draw(seed: int, variants: int = 60) -> tuple[Spec, list[Op]]:
    r = Random(seed)
    spec, _ = populations.draw(seed, variants)
    spec = replace(spec, refill=False, on_nonfinite=r.choice(["raise", "skip"]))
    faults: list[Op] = [(r.choice(FAULTS), r.randrange(9), r.choice([4, 9, 17])) for _ in ORDER]
    ops: list[Op] = [("feeds", *faults)]
    for _ in range(r.choice([1, 2, 3])):
        mode = r.choice(["end", "end", "leave", "eager", "look"])
        ops.append(("run", r.choice([3, 7, 30]), r.choice([2, 5, 256]), mode))
    if r.random() < 0.5:
        ops.insert(r.randrange(1, len(ops) + 1), ("save", r.choice(["all", "one", "value"])))
    return spec, ops


def play(spec: Spec, ops: list[Op]) -> Counter[str]:
    counts: Counter[str] = Counter()
    modules.GLOBAL = 1.0
    parts = cases.parts_of(spec)
    try:
        alone = [populations.member(spec, parts, *one) for one in ORDER]
    except hl.errors.ConfigError as error:
        return Counter({f"not allowed: {error}"[:90]: 1})
    feeds = [feed(spec, parts, member, *fault) for member, fault in enumerate(ops[0][1:])]

    def build() -> hl.Population:
        given = iter(ORDER)
        return hl.Population(
            lambda _: populations.member(spec, parts, *next(given)), [hl.Hyper()] * 2, (3, 5), streams=feeds
        )

    population = build()
    for kind, *rest in ops[1:]:
        counts[kind] += 1
        if kind == "save":
            population = saved(population, build, rest[0])
        else:
            advance(population, alone, feeds, *rest, counts)
        check(population, alone, f"after {kind} {rest}")
    return counts


def feed(spec: Spec, parts: Any, member: int, fault: str, at: int, length: int) -> list[hl.Sample]:
    """Samples of one member, one of which may be wrong."""
    own = replace(spec, seed=spec.seed + 977 * member, period=spec.period and spec.period + member)
    samples = [cases.sample_of(own, parts, k) for k in range(length)]
    if at >= length or fault == "none":
        return samples
    bad = samples[at]
    if fault == "tau":
        samples[at] = replace(bad, tau=-1.0)
    elif fault == "shape" and not isinstance(parts.feed, int) and isinstance(bad.u, torch.Tensor):
        samples[at] = replace(bad, u=torch.zeros(*bad.u.shape[:-1], bad.u.shape[-1] + 7, dtype=bad.u.dtype))
    elif fault == "infinite" and isinstance(bad.u, torch.Tensor) and bad.u.is_floating_point():
        samples[at] = replace(bad, u=torch.full_like(bad.u, float("inf")))
    elif parts.target != "class":
        target = parts.draw_target(torch.Generator(), spec.batch, spec.torch_dtype)
        if isinstance(target, torch.Tensor) and target.is_floating_point():
            samples[at] = replace(bad, target=torch.full_like(target, float("nan")))
    return samples


def advance(
    population: hl.Population,
    alone: list[hl.Learner],
    feeds: list[list[hl.Sample]],
    count: int,
    chunk: int,
    mode: str,
    counts: Counter[str],
) -> None:
    """Some steps of all, and as many of each alone; reports and errors are the same."""
    engine: Any = "eager" if mode == "eager" else "compiled"
    reports: list[Any] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for place, report in enumerate(population.run(max_steps=count, engine=engine, chunk=chunk, resume=True)):
            reports.append(report)
            if mode == "leave" and place == count // 2:
                count = len(reports)
                break
            if mode == "look" and place == count // 2:
                population.member(place % len(alone))
    for warning in told:
        text = str(warning.message)
        if text.startswith("engine='compiled' falls back to the eager engine"):
            counts["refused to record"] += 1
        elif "is frozen" not in text:
            raise Mismatch(f"an unexpected warning: {text}")
    for number, (learner, samples) in enumerate(zip(alone, feeds, strict=True)):
        error: Exception | None = None
        single: list[Any] = []
        try:
            for report in learner.run(samples, count, resume=True):
                single.append(report)
        except Exception as raised:
            error = raised
        aside = population.aside.get(number)
        if str(aside) != str(error):
            raise Mismatch(f"member {number} was frozen by {aside!r}, and alone it ends with {error!r}")
        compare(reports, number, single)


def compare(reports: list[Any], number: int, single: list[Any]) -> None:
    for k, report in enumerate(reports):
        mine = report[number]
        if (mine is None) != (k >= len(single)) or report.took[number] != (mine is not None):
            raise Mismatch(f"member {number} took part in step {k}: {report.took[number]}")
        if mine is None:
            continue
        other = single[k]
        if mine.skipped != other.skipped or mine.t != other.t:
            raise Mismatch(f"member {number}, step {k}: {mine}, alone {other}")
        if other.skipped:
            continue
        there = trees.leaves(mine.y)
        for path, value in trees.leaves(other.y).items():
            assert_close(there[path], value, 2e-11, f"y of member {number}, step {k}")
        if (mine.loss is None) != (other.loss is None):
            raise Mismatch(f"loss of member {number}, step {k}: {mine.loss}, alone {other.loss}")
        if other.loss is not None:
            assert_close(mine.loss, other.loss, 2e-11, f"loss of member {number}, step {k}")
            assert_close(report.loss[number], other.loss, 2e-11, f"losses, member {number}, step {k}")


def saved(population: hl.Population, build: Any, how: str) -> hl.Population:
    """Another population that has taken up the state of this one."""
    twin: hl.Population = build()
    with TemporaryDirectory() as folder:
        if how == "all":
            population.save(Path(folder, "all"))
            twin.load(Path(folder, "all"))
        elif how == "value":
            twin.load_state_dict(population.state_dict())
        else:
            for number in range(len(population)):
                population.member(number).save(Path(folder, "one"))
                twin.member(number).load(Path(folder, "one"))
    return twin


def check(population: hl.Population, alone: list[hl.Learner], what: str) -> None:
    for number, single in enumerate(alone):
        member = population.member(number)
        one, other = look(member), look(single)
        for name, value in other.items():
            if isinstance(value, torch.Tensor) or name == "t":
                assert_close(one[name], value, 2e-11, f"{what}: {name} of member {number}")
        if member.position != single.position:
            raise Mismatch(f"{what}: member {number} is at {member.position}, alone at {single.position}")
