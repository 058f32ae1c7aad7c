"""What a researcher adds: running costs, fields of time, credits and orders of one's own, credit for dense nets.

Each setting is drawn from one integer and taken by one engine. It is compared with `hamlearn.reference`, with the
gradient of the summed cost by plain autograd through the whole sequence, or with an order written out in autograd.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import hamlearn as hl
from hamlearn import reference
from hamlearn.credit import RTRL, Credit, SnAp
from tests.problems import NETWORKS, Problem, random_problem

MSE = nn.functional.mse_loss


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / (1 + wanted.abs().max())).item()


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class Timed(nn.Module):
    """A rate that is driven by the time and by the length of the step."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.inputs, self.recurrent = nn.Linear(inputs, size), nn.Linear(size, size, bias=False)

    def forward(self, u: Any, h: Any, tau: Any, t: Any) -> Any:
        return torch.tanh(self.inputs(u) + torch.sin(3 * t) * self.recurrent(h)) - tau * h


class Clocked(nn.Module):
    """A next state that depends on the time alone, not on the length of the step."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.inputs, self.recurrent = nn.Linear(inputs, size), nn.Linear(size, size, bias=False)

    def forward(self, u: Any, h: Any, t: Any) -> Any:
        return torch.tanh(torch.cos(t) * self.inputs(u) + self.recurrent(h))


class Cost:
    """Terms of every kind, each with a part of its own; the state may be any tree, or none."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.a, self.b, self.c, self.d, self.e, self.f = torch.rand(6, generator=draw).tolist()

    def __call__(self, u: Any, h: Any, dh: Any, y: Any, theta: Any, t: Any) -> Tensor:
        R = self.a * (y * (1 + torch.cos(t))).square().sum() / 2 + self.b * y.sum() * u.sum()
        R = R + self.c * torch.stack([weight.square().sum() for weight in theta.values()]).sum()
        for state, rate in [] if h is None else zip(tree_leaves(h), tree_leaves(dh), strict=True):
            terms = self.d * state.square() + self.e * state * rate + 0.1 * self.f * rate.square()
            R = R + terms.sum()
        return R


@dataclass(frozen=True)
class Fading(Credit):
    """A credit of one's own: z keeps a part of itself from step to step."""

    part: float = 0.5

    def enter(self, z: Tensor) -> Tensor:
        return self.part * z


class Optimistic(hl.Order):
    """An order of one's own: ω⁺ = (1 − τη) ω + τφ (2g − g⁻), with the present gradient g and the last one g⁻."""

    def first(self, h: list[Tensor], spec: Any) -> list[Tensor]:
        return [torch.zeros_like(weight, requires_grad=False) for weight in self.system.theta]

    def propose(self, carry: Any, now: Any) -> hl.Outcome:
        system, rates, sample, (h,) = self.system, now.rates, now.sample, carry.h
        theta, loss, omega, g = system.theta, None, [rates.decay * w for w in carry.omega], carry.E
        with torch.enable_grad():
            result = system.network.state_net(sample.u, h, rates.t, rates.tau)
            new = h + rates.tau * result if system.network.transition == "rate" else result
            y = system.network.output_net(sample.u, new)
            if sample.target is not None:
                loss = system.loss(y, sample.target)
                g = list(torch.autograd.grad(loss, theta))
        if loss is not None:
            gain, loss = rates.stride * rates.phi, loss.detach()
            omega = [w + gain * (2 * a - b) for w, a, b in zip(omega, g, carry.E, strict=True)]
        after = [new.detach()], [torch.zeros_like(h)], omega, y.detach(), loss, None, carry.spec
        return hl.Outcome(*after, E=g, learned=loss is not None)


def optimistic(network: hl.Network, hyper: hl.Hyper, samples: list[hl.Sample]) -> Iterator[dict[str, Tensor]]:
    """The same by autograd alone: ω of every step."""
    theta, t = dict(network.named_parameters()), 0.0
    omega = {n: torch.zeros_like(w.detach()) for n, w in theta.items()}
    last, h = dict(omega), network.initial_state(samples[0].u)
    for sample in samples:
        tau = hyper.tau if sample.tau is None else sample.tau
        result = network.state_net(sample.u, h, number(t), number(tau))
        new = h + tau * result if network.transition == "rate" else result
        literal = hyper.clock == "continuous"
        stride = tau if literal else hyper.tau
        keep = 1 - tau * hyper.eta if literal else (1 - hyper.tau * hyper.eta) ** (tau / hyper.tau)
        omega = {n: keep * w for n, w in omega.items()}
        if sample.target is not None:
            L = MSE(network.output_net(sample.u, new), sample.target)
            g = dict(zip(theta, torch.autograd.grad(L, list(theta.values())), strict=True))
            omega = {n: omega[n] + stride * hyper.phi * (2 * g[n] - last[n]) for n in theta}
            last = g
        for name, weight in theta.items():
            weight.data = weight.data - stride * hyper.beta * omega[name]
        h, t = new.detach(), t + tau
        if sample.boundary:
            h, last = network.initial_state(sample.u), {n: torch.zeros_like(w) for n, w in omega.items()}
        yield omega


def summed(network: hl.Network, hyper: hl.Hyper, samples: list[hl.Sample], cost: Any) -> dict[str, Tensor]:
    """∂/∂θ of Σ τ(φL + R) over a sequence, by going back through all of it."""
    h, t, total = network.start(samples[0].u), 0.0, torch.zeros((), dtype=torch.float64)
    for sample in samples:
        tau = hyper.tau if sample.tau is None else sample.tau
        result = network.state_net(sample.u, h, number(t), number(tau))
        rate = network.transition == "rate"
        new = tree_map(lambda a, b, r=rate, g=tau: a + g * b if r else b, h, result)
        dh = tree_map(lambda a, b, g=tau: (b - a) / g, h, new)
        y = network.output_net(sample.u, new)
        theta = dict(network.named_parameters())
        total = total + hyper.tau * cost(sample.u, new, dh, y, theta, number(t))
        if sample.target is not None:
            total = total + hyper.tau * hyper.phi * MSE(y, sample.target)
        h, t = new, t + tau
    named = dict(network.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True))


def problem_of(seed: int) -> tuple[Problem, dict[str, Any]]:
    """A problem with a running cost, an order, and a credit that says what z carries."""
    kinds = [*NETWORKS, "timed", "clocked"]
    kind = kinds[seed % len(kinds)]
    problem = random_problem({"timed": "rate", "clocked": "rate"}.get(kind, kind), seed, 8)
    if kind in ("timed", "clocked"):
        torch.manual_seed(seed)
        old: Any = problem.network
        sizes = old.state.inputs.in_features, old.state.recurrent.in_features
        state, way = (Timed(*sizes), "rate") if kind == "timed" else (Clocked(*sizes), "next")
        problem.network = hl.Network(state, old.output, h0=old.initial_state(None), transition=way).double()
    problem.samples[-1].boundary = True
    order = ("sequential", "parallel")[seed // len(kinds) % 2]
    credit = (hl.Forward(), hl.Cleared(), Fading(0.7))[seed // (2 * len(kinds)) % 3]
    return problem, {"order": order, "credit": credit, "running_cost": Cost(seed)}


def by_reference(seed: int, engine: Any) -> str:
    """Every step of a random problem against the plain equations."""
    problem, setting = problem_of(seed)
    learner = problem.learner(**setting)
    judge = reference.run(copy.deepcopy(problem.network), MSE, problem.hyper, problem.samples, **setting)
    for report, (expected, seen) in zip(learner.run(problem.samples, engine=engine), judge, strict=True):
        pairs = [(report.y, seen.y), (torch.as_tensor(report.hamiltonian), seen.hamiltonian)]
        if engine == "eager":  # a look would settle every block
            pairs += zip(tree_leaves(learner.state.z), tree_leaves(expected.z), strict=False)
        require(pairs)
    theta, omega = dict(learner.network.named_parameters()), learner.state.omega
    require([(theta[n].detach(), w) for n, w in expected.theta.items()])
    require([(omega[n], w) for n, w in expected.omega.items()])
    require_compiled(learner, engine)
    return f"{type(problem.network.state).__name__}, {setting['order']}, {type(setting['credit']).__name__}"


EXACT = (hl.Echo(), hl.Echo(truncate=50), RTRL(), SnAp(50))


def by_gradient(seed: int, engine: Any) -> str:
    """A sequence with resting weights, by an exact credit, against the gradient of the summed cost."""
    r = Random(seed)
    credit, kind = r.choice(EXACT), r.choice(["timed", "clocked", "rnn", "gru", "lstm"])
    inputs, size, outputs, batch = (r.randint(1, 3) for _ in range(4))
    torch.manual_seed(seed)
    readout = nn.Linear(size, outputs)
    if kind in ("timed", "clocked"):
        state, way = (Timed(inputs, size), "rate") if kind == "timed" else (Clocked(inputs, size), "next")
        network = hl.Network(state, ByState(readout), h0=torch.zeros(batch, size), transition=way)
    else:
        cell = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](inputs, size)
        network = hl.Network.recurrent(cell, readout)
    draw = lambda n: torch.randn(batch, n).double()  # noqa: E731
    samples = [
        hl.Sample(draw(inputs), draw(outputs) if r.random() < 0.7 else None, r.choice([None, 0.1, 0.6]))
        for _ in range(r.randint(2, 7))
    ]
    samples[-1].boundary = True
    hyper, cost = hl.Hyper(tau=0.25, eta=0.0, beta=0.0, phi=r.choice([0.7, 4.0])), Cost(seed)
    network = network.double()
    learner = hl.Learner(copy.deepcopy(network), MSE, hyper, credit=credit, running_cost=cost)
    for _ in learner.run(samples, engine=engine):
        pass
    wanted = summed(network, hyper, samples, cost)
    require([(learner.state.omega[n], gradient) for n, gradient in wanted.items()])
    require_compiled(learner, engine)
    return f"{kind}, {credit!r}"


class ByState(nn.Module):
    """A readout of the state alone, as f_y(u, h)."""

    def __init__(self, readout: nn.Module) -> None:
        super().__init__()
        self.readout = readout

    def forward(self, u: Any, h: Any) -> Any:
        return self.readout(h)


def by_order(seed: int, engine: Any) -> str:
    """An order of one's own against itself, written out in autograd."""
    r = Random(seed)
    problem = problem_of(10 + 12 * r.randrange(100) + r.choice([0, 1]))[0]
    hyper = hl.Hyper(
        tau=r.choice([0.2, 0.5]),
        eta=r.choice([0.0, 0.8]),
        beta=0.05 * r.random(),
        phi=r.choice([1.0, 2.5]),
        clock=r.choice(["events", "continuous"]),
    )
    learner = hl.Learner(copy.deepcopy(problem.network), MSE, hyper, order=Optimistic)
    for _ in learner.run(problem.samples, engine=engine):
        pass
    network = copy.deepcopy(problem.network)
    *_, omega = optimistic(network, hyper, problem.samples)
    require([(learner.state.omega[n], w) for n, w in omega.items()])
    theta = dict(learner.network.named_parameters())
    require([(theta[n].detach(), w.detach()) for n, w in network.named_parameters()])
    require_compiled(learner, engine)
    return f"{type(problem.network.state).__name__}, an order of one's own"


def require(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for found, wanted in pairs:
        away = relative(found, wanted)
        assert away < 1e-12, f"it is {away:.3g} away"


def require_compiled(learner: hl.Learner, engine: str) -> None:
    assert engine == "eager" or learner._blocks.refused is None, learner._blocks.refused


WAYS: tuple[Callable[[int, Any], str], ...] = (by_reference, by_reference, by_gradient, by_order)


def one(seed: int, engine: str) -> str:
    """One setting by one engine; what it was."""
    return WAYS[seed % len(WAYS)](seed // len(WAYS), engine)


def run(seconds: float, seed: int) -> dict[str, Any]:
    """New settings by both engines, for a time."""
    begin, cases, failures, number = monotonic(), Counter[str](), list[dict[str, Any]](), 1000 * seed
    while monotonic() - begin < seconds:
        for engine in ("eager", "compiled"):
            try:
                cases[f"{engine}: {one(number, engine)}"] += 1
            except Exception:
                failures.append({"what": f"one({number}, {engine!r})", "message": traceback.format_exc(limit=-3)})
        number += 1
    took = math.floor(monotonic() - begin)
    return {"cases": dict(cases), "failures": failures, "seed": seed, "seconds": took}
