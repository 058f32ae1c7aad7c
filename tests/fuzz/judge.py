"""Hamiltonian Learning a second time: plain autograd on plain modules, the equations as they are written.

Nothing of the library is used but the samples' fields and the hyper-parameters' values. Modules are called as a
user would call them, so that tied weights, buffers, hooks and attributes mean what PyTorch says they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz import judge_sensitivity, trees
from tests.fuzz.parts import Parts


@dataclass
class Seen:
    """What one step shows."""

    t: float
    y: Any
    loss: Tensor | None
    hamiltonian: Any


@dataclass
class Token:
    """One token that waits for its echo: the state it met, and the graphs of what followed from it."""

    u: Any
    target: Any
    t: float
    tau: float
    phi: float
    met: Any
    point: Any
    after: Any
    point1: Any
    loss: Tensor | None
    first: bool
    noise: Tensor
    buffers: dict[int, dict[str, Any]]
    y: Any = None


def at(rate: Any, t: float) -> Any:
    return rate(t) if callable(rate) and not isinstance(rate, Tensor) else rate


class Judge:
    """t, h, z, ω and θ of one learner, moved by the equations of the design."""

    def __init__(self, parts: Parts, loss: Callable[..., Tensor], hyper: Any, setting: Mapping[str, Any]) -> None:
        self.parts, self.loss, self.hyper = parts, loss, hyper
        self.order, self.credit = setting["order"], setting["credit"]
        self.reset_h, self.integrator = setting["reset_h"], setting["integrator"]
        self.t, self.h, self.z, self.updates = 0.0, None, None, 0
        self.omega = {n: torch.zeros_like(p) for n, p in self.learned().items()}
        self.v = {n: torch.zeros_like(p) for n, p in self.learned().items()}
        self.fresh = True
        self.tokens: list[Token] = []
        self.since = 0
        self.E: dict[str, Tensor] = {}

    def learned(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.parts.parameters().items() if p.requires_grad}

    def reset(self) -> None:
        self.fresh, self.tokens, self.since = True, [], 0

    def own_buffers(self) -> None:
        """Give the modules copies of their buffers, so that no graph shares memory with a later step."""
        for module in self.parts.modules():
            for part in module.modules():
                for name, buffer in part._buffers.items():
                    if buffer is not None:
                        part._buffers[name] = buffer.detach().clone()

    # Rates at an instant

    def scale(self, name: str, t: float) -> Any:
        """β as a number or tensor; of one that adapts, its scale."""
        beta = getattr(self.hyper.beta, "scale", self.hyper.beta)
        if isinstance(beta, Mapping):
            beta = next(b for pattern, b in beta.items() if fnmatchcase(name, pattern))
        return at(beta, t)

    def velocity(self, name: str, t: float, k: int, theta: Tensor, omega: Tensor) -> Any:
        """θ̇ of a weight, at the v of now."""
        rule, scale = self.hyper.beta, self.scale(name, t)
        if not hasattr(rule, "scale"):
            return -scale * omega
        first = second = 1.0
        if rule.momentum is not None:
            first, second = (1 - kept ** max(k, 1) for kept in (rule.momentum, rule.keep))
        beta = scale / first / ((self.v[name] / second) ** 0.5 + rule.eps)
        return -beta * omega - scale * rule.shrink * theta

    def follow(self, entered: Mapping[str, Tensor], gain: float, learned: bool) -> None:
        """Let v follow what enters ω per unit of gain."""
        if hasattr(self.hyper.beta, "scale") and learned and gain:
            keep = self.hyper.beta.keep
            self.v = {n: keep * v + (1 - keep) * (entered[n] / gain) ** 2 for n, v in self.v.items()}

    def penalised(self, L: Tensor | None) -> Tensor | None:
        """The loss with the penalty of the weights."""
        if L is None or not self.hyper.weight_decay:
            return L
        return L + 0.5 * self.hyper.weight_decay * sum((p * p).sum() for p in self.learned().values())

    def phi(self, t: float) -> float:
        if self.updates == 0 and self.hyper.phi_first is not None:
            return self.hyper.phi_first
        return at(self.hyper.phi, t)

    def eta(self, t: float) -> float:
        return at(self.hyper.eta, t)

    def eta_z(self, t: float) -> float:
        return self.eta(t) if self.hyper.eta_z is None else at(self.hyper.eta_z, t)

    def clock(self, t: float, tau: float) -> tuple[float, Callable[[float], float]]:
        """The step by which losses and weights move, and what a costate keeps of itself at a dissipation."""
        if getattr(self.hyper, "clock", "continuous") == "continuous":
            return tau, lambda eta: 1 - tau * eta
        tau0 = at(self.hyper.tau, t)
        return tau0, lambda eta: (1 - tau0 * eta) ** (tau / tau0)

    # The networks

    def f_h(self, u: Any, h: Any, tau: float) -> Any:
        if self.parts.f_h is None:
            return ()
        out = self.parts.f_h(u, h)
        if self.parts.transition == "rate":
            return out
        return trees.apply(lambda a, b: (-a + b) / tau, h, out)

    def after(self, u: Any, h: Any, tau: float) -> Any:
        return trees.apply(lambda a, b: a + tau * b, h, self.f_h(u, h, tau)) if h != () else ()

    def f_y(self, u: Any, h: Any) -> Any:
        return self.parts.f_y(u, h)

    def begin(self, u: Any) -> None:
        if self.fresh or self.reset_h == "sample":
            self.h = trees.cut(self.parts.h0(u)) if self.parts.f_h is not None else ()
        if self.fresh or self.credit[0] != "Forward":
            self.z = trees.zeros(self.h)
        if self.fresh and self.credit[0] == "Sensitivity":
            self.E = judge_sensitivity.start(self, u)

    def grads(self, scalar: Any, of: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not isinstance(scalar, Tensor) or not scalar.requires_grad or not of:
            return {n: torch.zeros_like(x) for n, x in of.items()}
        given = torch.autograd.grad(
            scalar, list(of.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return {n: g.to_dense() if g.is_sparse else g for n, g in zip(of, given, strict=True)}

    # One sample

    def step(self, u: Any, target: Any, tau: float | None, boundary: bool) -> Seen:
        self.own_buffers()
        tau = at(self.hyper.tau, self.t) if tau is None else tau
        first = self.fresh
        self.begin(u)
        self.fresh = False
        if self.credit[0] == "Echo":
            seen = self.token(u, target, tau, boundary, first)
        elif self.credit[0] == "Sensitivity":
            seen = Seen(self.t, *judge_sensitivity.step(self, u, target, tau))
        elif self.order == "sequential":
            seen = self.sequential(u, target, tau)
        else:
            seen = self.parallel(u, target, tau)
        self.t += tau
        if boundary:
            self.reset()
            self.h = trees.cut(self.parts.h0(u)) if self.parts.f_h is not None else ()
            self.z = trees.zeros(self.h)
        return seen

    def sequential(self, u: Any, target: Any, tau: float) -> Seen:
        t, s = self.t, self.hyper.s
        phi, theta = self.phi(t), self.learned()
        unit, keeps = self.clock(t, tau)
        h = trees.leaf(self.h)
        dh = self.f_h(u, h, tau)
        h1 = trees.apply(lambda a, b: a.detach() + tau * b.detach(), h, dh) if h != () else ()
        h1 = trees.leaf(h1)
        y = self.f_y(u, h1)
        L = None if target is None else self.loss(y, target)
        dL_dh1 = self.grads(L, trees.leaves(h1))
        dzf_dh = self.grads(trees.inner(self.z, dh), trees.leaves(h))
        full = self.penalised(L)
        H = trees.inner(self.z, dh) + (0.0 if full is None else phi * full)
        old = trees.leaves(self.z)
        z1 = {
            path: keeps(self.eta_z(t)) * old[path] - s * (unit * phi * dL_dh1[path] + tau * dzf_dh[path])
            for path in old
        }
        self.z = trees.build(self.z, z1)
        dzf = self.grads(trees.inner(self.z, dh), theta)
        dL = self.grads(full, theta)
        entered = {n: -s * (tau * dzf[n] + unit * phi * dL[n]) for n in theta}
        self.follow(entered, unit * phi, target is not None)
        self.updates += target is not None
        for n, p in theta.items():
            self.omega[n] = keeps(self.eta(t)) * self.omega[n] + entered[n]
            p.data = p.data + unit * self.velocity(n, t, self.updates, p.data, self.omega[n])
        self.h = trees.cut(h1)
        return Seen(t, trees.cut(y), None if L is None else L.detach(), H)

    def parallel(self, u: Any, target: Any, tau: float) -> Seen:
        t, unit = self.t, self.clock(self.t, tau)[0]
        start = {n: p.data for n, p in self.learned().items()}
        before = self.buffers()
        noise, seen = torch.get_rng_state(), []
        kept: dict[str, Any] = {}

        def rates(c: float, x: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
            """All right-hand sides at time t + cτ and at x; the first stage alone leaves a trace."""
            if x is not None:
                kept.setdefault(
                    "buffers", {id(m): dict(m._buffers) for n in self.parts.modules() for m in n.modules()}
                )
                kept.setdefault("noise", torch.get_rng_state())
                self.put(before)
                torch.set_rng_state(noise)
            here = x or point
            for n, p in self.learned().items():
                p.data = here[f"theta:{n}"]
            h = trees.leaf(trees.build(self.h, {k[2:]: v for k, v in here.items() if k.startswith("h:")}))
            z = trees.build(self.h, {k[2:]: v for k, v in here.items() if k.startswith("z:")})
            phi, eta, eta_z = self.phi(t + c * tau), self.eta(t + c * tau), self.eta_z(t + c * tau)
            dh = self.f_h(u, h, tau)
            y = self.f_y(u, h)
            L = None if target is None else self.loss(y, target)
            zf = trees.inner(z, dh)
            gain = unit / tau
            by_h, by_theta = trees.leaves(h), self.learned()
            dzf, dL = self.grads(zf, by_h), self.grads(L, by_h)
            full, s = self.penalised(L), self.hyper.s
            dzf_w, dL_w = self.grads(zf, by_theta), self.grads(full, by_theta)
            if not seen:
                H = zf + (0 if full is None else phi * full)
                seen.append(Seen(t, trees.cut(y), L if L is None else L.detach(), H))
                kept["entered"] = {n: -s * (unit * phi * dL_w[n] + tau * dzf_w[n]) for n in by_theta}
            out = {f"h:{k}": v.detach() for k, v in trees.leaves(dh).items()}
            for k in by_h:
                out[f"z:{k}"] = -s * (gain * phi * dL[k] + dzf[k]) - self.fade(t, tau, eta_z) * here[f"z:{k}"]
            for n in by_theta:
                w = here[f"omega:{n}"]
                out[f"omega:{n}"] = -s * (gain * phi * dL_w[n] + dzf_w[n]) - self.fade(t, tau, eta) * w
                moving = self.velocity(n, t + c * tau, self.updates, here[f"theta:{n}"], w)
                out[f"theta:{n}"] = gain * moving
            return out

        point = {f"h:{k}": v for k, v in trees.leaves(self.h).items()}
        point |= {f"z:{k}": v for k, v in trees.leaves(self.z).items()}
        point |= {f"theta:{n}": v for n, v in start.items()} | {f"omega:{n}": self.omega[n] for n in start}

        def moved(by: float, slope: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {k: v + by * slope[k] for k, v in point.items()}

        k1 = rates(0.0, None)
        if self.integrator == "Euler":
            slope = k1
        elif self.integrator == "Heun":
            k2 = rates(1.0, moved(tau, k1))
            slope = {k: (k1[k] + k2[k]) / 2 for k in k1}
        else:
            k2 = rates(0.5, moved(tau / 2, k1))
            k3 = rates(0.5, moved(tau / 2, k2))
            k4 = rates(1.0, moved(tau, k3))
            slope = {k: (k1[k] + 2 * k2[k] + 2 * k3[k] + k4[k]) / 6 for k in k1}
        end = moved(tau, slope)
        self.h = trees.build(self.h, {k[2:]: v for k, v in end.items() if k.startswith("h:")})
        self.z = trees.build(self.h, {k[2:]: v for k, v in end.items() if k.startswith("z:")})
        for n, p in self.learned().items():
            p.data, self.omega[n] = end[f"theta:{n}"], end[f"omega:{n}"]
        self.follow(kept["entered"], unit * self.phi(t), target is not None)
        if "noise" in kept:
            torch.set_rng_state(kept["noise"])
            for net in self.parts.modules():
                for m in net.modules():
                    m._buffers.update(kept["buffers"][id(m)])
        self.updates += target is not None
        return seen[0]

    def fade(self, t: float, tau: float, eta: float) -> float:
        """The rate at which a costate dissipates: η, or what gives the gap's exact factor in one Euler step."""
        return (1 - self.clock(t, tau)[1](eta)) / tau

    # The echo

    def token(self, u: Any, target: Any, tau: float, boundary: bool, first: bool) -> Seen:
        t, phi = self.t, self.phi(self.t)
        self.tokens.append(self.forward(u, target, t, tau, phi, self.h, first))
        token = self.tokens[-1]
        self.h = trees.cut(token.after)
        self.since += 1
        _, truncate, every, dissipate = self.credit
        if truncate is not None:
            self.tokens = self.tokens[-truncate:]
        if boundary or self.since == every:
            self.echo(truncate, dissipate)
            self.since = 0
            if truncate is None:
                self.tokens = []
        loss = token.loss
        return Seen(
            t, token.y, None if loss is None else loss.detach(), 0.0 if loss is None else phi * loss.detach()
        )

    def forward(self, u: Any, target: Any, t: float, tau: float, phi: float, met: Any, first: bool) -> Token:
        noise, buffers = torch.get_rng_state(), self.buffers()
        point = trees.leaf(met)
        # Where the first state is learned, the first token is a function of it.
        start = self.parts.h0(u) if first and self.parts.learned_h0 is not None else point
        after = self.after(u, start, tau)
        point1 = trees.leaf(after)
        y = self.f_y(u, point1)
        loss = None if target is None else self.loss(y, target)
        made = Token(u, target, t, tau, phi, trees.cut(met), point, after, point1, loss, first, noise, buffers)
        made.y = trees.cut(y)
        return made

    def run_again(self, token: Token) -> None:
        """A token that has echoed before, at other weights: from the state it met, with no trace left."""
        noise, buffers = torch.get_rng_state(), self.buffers()
        torch.set_rng_state(token.noise)
        self.put(token.buffers)
        again = self.forward(token.u, token.target, token.t, token.tau, token.phi, token.met, first=False)
        torch.set_rng_state(noise)
        self.put(buffers)
        kept = {name: getattr(token, name) for name in ("first", "noise", "buffers")}
        vars(token).update(vars(again) | kept)

    def buffers(self) -> dict[int, dict[str, Any]]:
        return {
            id(m): {k: v if v is None else v.clone() for k, v in m._buffers.items()}
            for net in self.parts.modules()
            for m in net.modules()
        }

    def put(self, buffers: Mapping[int, Mapping[str, Any]]) -> None:
        for net in self.parts.modules():
            for m in net.modules():
                m._buffers.update({k: v if v is None else v.clone() for k, v in buffers[id(m)].items()})

    def echo(self, truncate: int | None, dissipate: str) -> None:
        theta = self.learned()
        entered = {n: torch.zeros_like(p) for n, p in theta.items()}
        last = self.tokens[-1]
        z = trees.zeros(last.after)
        behind = None
        window = self.tokens if truncate is None else self.tokens[-truncate:]
        for token in reversed(window):
            if token.point is None:
                self.run_again(token)
            unit, keeps = self.clock(token.t, token.tau)
            dL = self.grads(token.loss, trees.leaves(token.point1))
            back = (
                {k: torch.zeros_like(v) for k, v in trees.leaves(z).items()}
                if behind is None
                else self.grads(trees.inner(z, behind.after), trees.leaves(behind.point))
            )
            old = trees.leaves(z)
            lost = 1 - keeps(self.eta_z(token.t))
            z = trees.build(z, {k: unit * token.phi * dL[k] + back[k] - lost * old[k] for k in old})
            dz, dLw = self.grads(trees.inner(z, token.after), theta), self.grads(token.loss, theta)
            decay = keeps(self.eta(token.t)) if dissipate == "token" else 1.0
            if dissipate == "sequence" and behind is None:
                decay = 1 - unit * self.eta(token.t)  # a sequence is one event, whatever its gaps
            for n in theta:
                gained = dz[n] + unit * token.phi * dLw[n]
                self.omega[n], entered[n] = decay * self.omega[n] + gained, entered[n] + gained
            behind = token
        unit, learned = self.clock(last.t, last.tau)[0], any(token.target is not None for token in window)
        self.updates += learned
        for n, p in theta.items() if learned else ():
            decayed = unit * last.phi * self.hyper.weight_decay * p.data
            self.omega[n], entered[n] = self.omega[n] + decayed, entered[n] + decayed
        self.follow(entered, unit * last.phi, learned)
        for n, p in theta.items():
            p.data = p.data + unit * self.velocity(n, last.t, self.updates, p.data, self.omega[n])
        for token in self.tokens:
            token.point = None

    # What may be asked

    def predict(self, u: Any) -> Any:
        training = [(m, m.training) for net in self.parts.modules() for m in net.modules()]
        for m, _ in training:
            m.training = False
        try:
            with torch.no_grad():
                h: Any = ()
                if self.parts.f_h is not None:
                    h = self.parts.h0(u) if self.fresh or self.reset_h == "sample" else self.h
                    if self.order == "sequential":
                        h = self.after(u, h, at(self.hyper.tau, self.t))
                return trees.cut(self.f_y(u, h))
        finally:
            for m, was in training:
                m.training = was
