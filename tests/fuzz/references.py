"""Cases of `hl.reference`: against the plain judge, and without a trace in the network that it judges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, trees, zoo
from tests.fuzz.cases import Spec
from tests.fuzz.judge import Judge
from tests.fuzz.looks import Mismatch, assert_close, assert_trees_close, same, sharing


def draw(seed: int, variants: int = 60) -> tuple[Spec, list[Any]]:
    r = Random(seed)
    spec = replace(cases.draw_spec(r, seed, variants), integrator="Euler", dtype="float64")
    plain = zoo.make(spec.network, 0, (1,), spec.variant, torch.float64)
    if plain.traits & {"buffers", "random", "python"} or plain.learned_h0 is not None:
        spec = replace(spec, network="tied rate", batch=(1,), credit=("Forward",))
    if spec.credit[0] == "Echo":
        spec = replace(spec, credit=("Echo", r.choice([None, 2]), None, spec.credit[3]), period=spec.period or 7)
    return spec, [("judge", 14)]


def play(spec: Spec, ops: list[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        learner, loss = cases.learner_of(spec)
    except hl.errors.ConfigError as error:
        return Counter({f"not allowed: {error}"[:90]: 1})
    network, hyper = learner.network, learner.hyper
    before = {n: v.clone() for n, v in network.state_dict().items()}
    shared = sharing(network)
    parts = cases.parts_of(spec)
    for module in parts.modules():
        module.train(spec.train)
    setting = {"order": spec.order, "credit": spec.credit, "reset_h": spec.reset_h, "integrator": "Euler"}
    judge = Judge(parts, cases.loss_of(spec, parts), hyper, setting)
    for _, count in ops:
        counts["samples"] += count
        samples = [cases.sample_of(spec, parts, k) for k in range(count)]
        if spec.credit[0] == "Echo":
            samples[-1].boundary = True
            found = echoes(network, loss, hyper, samples, spec.credit)
        else:
            credit = cases.credit_of(spec)
            found = hl.reference.run(network, loss, hyper, samples, spec.order, credit, spec.reset_h)
        for sample, (state, report) in zip(samples, found, strict=True):
            seen = judge.step(sample.u, sample.target, sample.tau, sample.boundary)
            assert_trees_close(report.y, seen.y, 1e-11, "reference: y")
            if seen.loss is not None:
                assert_close(report.loss, seen.loss, 1e-11, "reference: loss")
            if state is None:
                continue
            for name, parameter in judge.learned().items():
                assert_close(state.theta[name], parameter, 1e-11, f"reference: theta {name}")
                assert_close(state.omega[name], judge.omega[name], 1e-11, f"reference: omega {name}")
            if parts.f_h is not None and spec.credit[0] != "Echo":
                assert_trees_close(state.h, judge.h, 1e-11, "reference: h")
                assert_trees_close(state.z, judge.z, 1e-11, "reference: z")
    for name, value in network.state_dict().items():
        if type(value) is not torch.Tensor or not same(value, before[name]):
            raise Mismatch(f"the reference changed {name} of the network that it judges")
    if sharing(network) != shared:
        raise Mismatch("the reference broke the sharing of weights in the network that it judges")
    return counts


def echoes(network: hl.Network, loss: Any, hyper: hl.Hyper, samples: list[hl.Sample], credit: Any) -> Any:
    """One sequence after the other through `echo_sequence`; the state is told at the end of each."""
    state, tokens = hl.reference.start(network), []
    for sample in samples:
        tokens.append(sample)
        if sample.boundary:
            state = replace(state, h=trees.cut(network.initial_state(sample.u)))
            state, reports = hl.reference.echo_sequence(
                network, loss, hyper, state, tokens, truncate=credit[1], dissipate=credit[3]
            )
            yield from ((None, report) for report in reports[:-1])
            yield state, reports[-1]
            tokens = []
