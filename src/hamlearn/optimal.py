"""The optimum that Hamiltonian Learning approximates: how weights would move if the future were known.

Learning minimises the cost C = Σ_k e^{η(t_k − T)} τ (φL_k + ½|v_k|²/β) over the velocities v of the weights. The
exact solution depends on costates that are zero at the end, so it cannot be found on a stream. `solve` finds it on
recorded samples, by sweeps forward (the network) and backward (the costates). `follow` measures a learner by the
same cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.slots import Slots
from hamlearn._base.torch_private import tree_map
from hamlearn.adaptive import Adaptive
from hamlearn.errors import ConfigError, SampleError
from hamlearn.reference import ReferenceState
from hamlearn.reference import _equations as equations
from hamlearn.sample import Sample

if TYPE_CHECKING:
    from hamlearn.hyper import Hyper
    from hamlearn.learner import Learner
    from hamlearn.network import Network

__all__ = ["Energy", "Trajectory", "energy", "follow", "solve"]

Order = Literal["sequential", "parallel"]
Paths = dict[str, Tensor]
"""Tensors by the name of a weight, with time as first axis."""


@dataclass(frozen=True)
class Trajectory:
    """Weights over time, and what they cost.

    Attributes:
        cost: C = `loss_cost` + `motion_cost`. The factor e^{η(t − T)} is 1 at the last step.
        loss_cost: Σ e^{η(t − T)} τφL.
        motion_cost: Σ e^{η(t − T)} τ½|v|²/β.
        t: Time at the beginning of each step.
        losses: L of each step; NaN if the sample has no target.
        y: Output of each step.
        theta: Weights by name, before the first step and after each.
        velocity: v of each step, by name.
        omega: Exact costate ω of each step, by name: the derivative of what the rest of the path will cost. At the
            optimum v = −βω. It is 0 at the last step.
        sweeps: How often the samples were swept forward and backward.
        residual: Largest violation of v = −βω, relative to the largest v, both per √β.
        converged: Whether `residual` is below the tolerance of `solve`.

    Example:
        >>> import hamlearn as hl, torch
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1).double())
        >>> samples = [hl.Sample(torch.ones(1, 1).double(), torch.zeros(1, 1).double())] * 3
        >>> best = hl.optimal.solve(net, torch.nn.functional.mse_loss, samples, hl.Hyper(beta=0.1))
        >>> best.theta["output.weight"].shape, best.velocity["output.weight"].shape
        (torch.Size([4, 1, 1]), torch.Size([3, 1, 1]))
    """

    cost: float
    loss_cost: float
    motion_cost: float
    t: Tensor
    losses: Tensor
    y: list[Any]
    theta: Paths
    velocity: Paths
    omega: Paths
    sweeps: int
    residual: float
    converged: bool


def solve(
    network: Network,
    loss: equations.Loss,
    samples: Iterable[Sample],
    hyper: Hyper,
    *,
    order: Order = "sequential",
    reset_h: Literal["boundary", "sample"] = "boundary",
    tolerance: float = 1e-8,
    max_sweeps: int = 2000,
) -> Trajectory:
    """The best way for the weights through recorded samples, from where the network has them now.

    θ_{k+1} = θ_k + τv_k. All v_k are found at once by Newton's method, with conjugate gradients inside: each of
    their steps takes a sweep of the costates backward. If the problem is not convex, the result is the local
    optimum that is reached from weights at rest. The network itself does not change.

    C hardly depends on velocities whose factor e^{η(t − T)} is tiny. If ηT is above 20 or so, the first ones
    are found to fewer digits than the tolerance asks for, and `residual` says so.

    Args:
        network: Its weights are the start. float64 is advised.
        loss: Function of output and target, differentiable.
        samples: A finite recording. A boundary starts the state again.
        hyper: η and φ, β as the inverse price of motion, and τ for samples without their own: numbers, schedules,
            or mappings by name. `s`, `eta_z` and `phi_first` play no part.
        order: `"sequential"`: the loss of a step is that of the new state. `"parallel"`: of the state before.
        reset_h: As in `Learner`.
        tolerance: Stop when `residual` is below this.
        max_sweeps: Stop after so many sweeps in any case.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1).double())
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> samples, hyper = [hl.Sample(one, one)] * 20, hl.Hyper(tau=0.1, eta=0.1)
        >>> best = solve(net, torch.nn.functional.mse_loss, samples, hyper)
        >>> best.converged, best.theta["output.bias"].shape, best.omega["output.bias"][-1].item()
        (True, torch.Size([21, 1]), 0.0)
    """
    problem = _Problem(network, loss, list(samples), hyper, order, reset_h)
    # In the unit w = v·√(e^{η(t−T)}τ/β) the cost of motion is ½|w|², whatever η and β are, and the matrix of
    # second derivatives is the identity plus a smooth part: conjugate gradients need few sweeps.
    scaled = torch.zeros(problem.size, dtype=problem.factors.dtype, requires_grad=True)

    def cost(w: Tensor) -> Tensor:
        losses, _ = problem.outcome(problem.path(problem.velocities(w)))
        return problem.weighted(losses) + 0.5 * w.square().sum()

    scaled, sweeps, residual = _newton(cost, scaled, problem.robust, tolerance, max_sweeps)
    velocities = problem.velocities(scaled)
    return problem.trajectory(problem.path(velocities), velocities, sweeps, residual, tolerance)


def follow(learner: Learner, samples: Iterable[Sample], *, price: Hyper | None = None) -> Trajectory:
    """What a learner pays on recorded samples by the cost that `solve` minimises. The learner learns from them.

    Args:
        learner: Of any order and credit. It takes one eager step per sample.
        samples: The same recording.
        price: η, φ and β of the cost; `None`: those of the learner.

    Returns:
        The path of its weights. `residual` is how far its velocities are from −βω, with the exact ω on this path.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss, hl.Hyper(tau=0.1, eta=0.1))
        >>> paid = follow(learner, [hl.Sample(torch.ones(1, 1), torch.ones(1, 1))] * 5)
        >>> paid.cost == paid.loss_cost + paid.motion_cost, len(paid.losses)
        (True, 5)
    """
    recorded = list(samples)
    hyper = learner.hyper if price is None else price
    if isinstance(learner.order, type):
        raise ConfigError(f"{learner.order.__name__} has no optimum here: use order='sequential' or 'parallel'")
    if learner.running_cost is not None:
        raise ConfigError("the optimum is that of the loss alone: give a learner without running_cost")
    problem = _Problem(learner.network, learner.loss, recorded, hyper, learner.order, learner.reset_h)
    rows = [problem.start]
    for sample in recorded:
        learner.step(sample)
        rows.append(_weights(learner.network))
    theta = {name: torch.stack([row[name] for row in rows]) for name in problem.start}
    velocity = {name: _times(path.diff(dim=0), 1 / problem.strides) for name, path in theta.items()}
    return problem.trajectory(theta, velocity, len(recorded), None, 0.0)


class Energy(NamedTuple):
    """The full Hamiltonian and the cost at one instant.

    Attributes:
        hamiltonian: φL + R + ⟨z, f_h⟩ − ½⟨ω, β⊙ω⟩: the robust Hamiltonian with the motion of the weights.
        cost: φL + R + ½⟨ω, β⊙ω⟩, where the last term is ½|θ̇|²/β.

    Example:
        >>> import hamlearn as hl
        >>> hl.optimal.Energy(torch.tensor(1.0), torch.tensor(2.0)).cost
        tensor(2.)
    """

    hamiltonian: Tensor
    cost: Tensor


def energy(learner: Learner, sample: Sample) -> Energy:
    """The full Hamiltonian and the cost of a learner where it is now, for the sample that it would take next.

    Everything is taken at the present time, as parallel order does. With s = +1, η = η_z = 0 and a sample that
    stays the same, the exact flow keeps this Hamiltonian. Nothing moves; the network runs in its present mode.

    Args:
        learner: The learner, which is only looked at.
        sample: Input, and a target if there is one.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> sample = hl.Sample(torch.ones(1, 1), torch.ones(1, 1))
        >>> H, cost = energy(learner, sample)
        >>> bool(H == cost)  # ω is still 0
        True
    """
    network, hyper, now = learner.network, learner.hyper, learner.state
    theta, h = _weights(network), now.h
    if h is None:
        h = () if network.state is None else network.initial_state(sample.u)
    z = tree_map(torch.zeros_like, h) if now.z is None else now.z
    state = ReferenceState(now.t, h, z, theta, now.omega, now.updates, now.v)
    tau = equations.tau_of(hyper, state, sample)
    _, phi, _, _, beta = equations.hyper_at(hyper, state)
    with torch.no_grad():
        dh = equations.f_h(network, theta, sample.u, h, tau, now.t)
        y = equations.f_y(network, theta, sample.u, h)
        motion = [(beta(name, now.v, now.updates) * w.square()).sum() for name, w in now.omega.items()]
        moving, potential = 0.5 * torch.stack(motion).sum(), torch.zeros(())
        if sample.target is not None:
            potential = phi * (learner.loss(y, sample.target) + equations.penalty(hyper, theta))
        R = equations.running(learner.running_cost, sample.u, h, dh, y, theta, now.t)
        potential = potential if R is None else potential + R
        return Energy(potential + equations.inner(z, dh) - moving, potential + moving)


class _Problem:
    """Cost of a path of weights, on recorded samples."""

    def __init__(
        self, network: Network, loss: Any, samples: list[Sample], hyper: Hyper, order: Order, reset_h: str
    ) -> None:
        if not samples:
            raise SampleError("the optimum of no samples is not defined: give at least one")
        if isinstance(hyper.beta, Adaptive):
            raise ConfigError(
                "beta is Adaptive: it depends on the path of the weights, and so has no cost of its own. "
                "Give a number, a schedule, a tensor or a mapping by name"
            )
        self.network, self.loss, self.samples = network, loss, samples
        self.hyper, self.order, self.reset_h = hyper, order, reset_h
        self.slots, self.start = Slots(network), _weights(network)
        if not self.start:
            raise ConfigError("the network has no weights that can move: all have requires_grad=False")
        like = next(iter(self.start.values()))
        self._clock(like)
        self.units = {name: self._unit(name, weight) for name, weight in self.start.items()}
        self.size = sum(unit.numel() for unit in self.units.values())
        # 1/√e^{η(t−T)} for each entry of w: derivatives times these are as large at the start as at the end.
        robust = [_times(torch.ones_like(unit), self.factors.rsqrt()).reshape(-1) for unit in self.units.values()]
        self.robust = torch.cat(robust)

    def _clock(self, like: Tensor) -> None:
        """τ, τ0, φ and β of each step, and the factor e^{η(t − T)}."""
        self.rates, strides, grown, t = [], [], [0.0], 0.0
        for sample in self.samples:
            now = ReferenceState(t, (), (), {}, {}, updates=1)
            tau = equations.tau_of(self.hyper, now, sample)
            stride = equations.nominal_of(self.hyper, now, tau)
            _, phi, eta, _, beta = equations.hyper_at(self.hyper, now)
            self.rates.append((t, tau, phi, beta))
            strides.append(stride)
            grown.append(grown[-1] + eta * stride)
            t += tau
        self.strides = like.new_tensor(strides)
        self.factors = like.new_tensor([math.exp(g - grown[-2]) for g in grown[:-1]])
        self.times = torch.tensor([row[0] for row in self.rates], dtype=torch.float64)

    def _unit(self, name: str, weight: Tensor) -> Tensor:
        """Velocity per unit of w, √(β e^{−η(t−T)}/τ), for each step and weight."""
        betas = torch.stack(
            [torch.as_tensor(beta(name, {}, 1), dtype=weight.dtype).expand_as(weight) for *_, beta in self.rates]
        )
        return _times(betas, 1 / (self.factors * self.strides)).sqrt()

    def velocities(self, scaled: Tensor) -> Paths:
        """Each weight's v, from all w in one vector."""
        parts = scaled.split([unit.numel() for unit in self.units.values()])
        return {name: unit * w.view_as(unit) for (name, unit), w in zip(self.units.items(), parts, strict=True)}

    def path(self, velocities: Paths) -> Paths:
        """θ before the first step and after each."""
        return {
            name: torch.cat([self.start[name][None], self.start[name] + _times(v, self.strides).cumsum(0)])
            for name, v in velocities.items()
        }

    def outcome(self, theta: Paths) -> tuple[list[Tensor | None], list[Any]]:
        """L + ½λ|θ|² and y of each step, along a path of the weights."""
        losses: list[Tensor | None] = []
        outputs, h, fresh = [], None, True
        for k, (sample, (t, tau, *_)) in enumerate(zip(self.samples, self.rates, strict=True)):
            weights = {name: path[k] for name, path in theta.items()}
            with self.slots.exchanged(weights):
                if fresh or self.reset_h == "sample":
                    h = self.network.start(sample.u)
                before, h = h, self._next(sample.u, h, t, tau)
                y = self.network.output_net(sample.u, h if self.order == "sequential" else before)
                L = None if sample.target is None else self.loss(y, sample.target)
            if L is not None and self.hyper.weight_decay:
                L = L + equations.penalty(self.hyper, weights)
            losses.append(L)
            outputs.append(equations.detach(y))
            fresh = sample.boundary
        return losses, outputs

    def _next(self, u: Any, h: Any, t: float, tau: float) -> Any:
        if self.network.state is None:
            return None
        result = self.network.state_net(u, h, t, tau)
        return tree_map(lambda a, b: a + tau * b, h, result) if self.network.transition == "rate" else result

    def weighted(self, losses: list[Tensor | None]) -> Tensor:
        """Σ e^{η(t − T)} τφL."""
        gains = [float(f * s) * row[2] for f, s, row in zip(self.factors, self.strides, self.rates, strict=True)]
        terms = [gain * L for gain, L in zip(gains, losses, strict=True) if L is not None]
        return torch.stack(terms).sum() if terms else self.factors.new_zeros(())

    def trajectory(
        self, theta: Paths, velocity: Paths, sweeps: int, residual: float | None, tolerance: float
    ) -> Trajectory:
        theta = {name: path.detach().requires_grad_() for name, path in theta.items()}
        losses, outputs = self.outcome(theta)
        paid = self.weighted(losses)
        omega = self._costates(paid, theta)
        moved = {name: _moved(v, self.units[name]) for name, v in velocity.items()}
        motion = sum(float(0.5 * w.square().sum()) for w in moved.values())
        if residual is None:
            # ∂C/∂w = w + ω·(unit of v)·(factor·τ)
            pull = {n: _times(self.units[n] * omega[n], self.factors * self.strides) for n in omega}
            w = torch.cat([moved[n].reshape(-1) for n in omega])
            gradient = w + torch.cat([pull[n].reshape(-1) for n in omega])
            residual = _relative(gradient * self.robust, w * self.robust)
        L = torch.tensor([math.nan if x is None else float(x.detach()) for x in losses], dtype=self.factors.dtype)
        paid_ = float(paid.detach())
        return Trajectory(
            cost=paid_ + motion,
            loss_cost=paid_,
            motion_cost=motion,
            t=self.times,
            losses=L,
            y=outputs,
            theta={name: path.detach() for name, path in theta.items()},
            velocity=velocity,
            omega=omega,
            sweeps=sweeps,
            residual=residual,
            converged=residual <= tolerance,
        )

    def _costates(self, paid: Tensor, theta: Paths) -> Paths:
        """ω that moves the weights in each step: the derivative of what the later steps cost, over e^{η(t−T)}."""
        gradients = torch.autograd.grad(paid, list(theta.values()), materialize_grads=True, allow_unused=True)
        # ω after step k adds up the derivatives of the costs of steps k+1 and later.
        rest = {name: g[1:].flip(0).cumsum(0).flip(0) for name, g in zip(theta, gradients, strict=True)}
        return {name: _times(total, 1 / self.factors) for name, total in rest.items()}


def _newton(
    cost: Callable[[Tensor], Tensor], start: Tensor, robust: Tensor, tolerance: float, max_sweeps: int
) -> tuple[Tensor, int, float]:
    """A minimum of `cost` near `start`, the sweeps it took, and the largest derivative relative to that of x."""
    x, sweeps, residual, near = start, 0, math.inf, False
    while True:
        x = x.detach().requires_grad_()
        value = cost(x)
        (graph,) = torch.autograd.grad(value, x, create_graph=True)
        gradient, sweeps = graph.detach(), sweeps + 1
        before, residual = residual, _relative(gradient * robust, x.detach() * robust)
        # Near the minimum, half as small at least, or rounding has the last word.
        if residual <= tolerance or sweeps >= max_sweeps or (near and residual > 0.5 * before):
            return x.detach(), sweeps, residual

        def curvature(p: Tensor, graph: Tensor = graph, x: Tensor = x) -> Tensor:
            return torch.autograd.grad(graph, x, p, retain_graph=True)[0]

        direction, used = _conjugate(curvature, -gradient, min(0.1, residual / 10), max_sweeps - sweeps)
        sweeps += used
        height, slope, length = float(value.detach()), float(gradient @ direction), 1.0
        near = -slope <= 1e-12 * abs(height)  # differences of the cost are rounding: the full step is the best one
        with torch.no_grad():
            while not near and float(cost(x + length * direction)) > height + 1e-4 * length * slope:
                length, sweeps = 0.5 * length, sweeps + 1
                if length < 1e-6:
                    return x.detach(), sweeps, residual
        x = x + length * direction


def _conjugate(
    curvature: Callable[[Tensor], Tensor], right: Tensor, tolerance: float, most: int
) -> tuple[Tensor, int]:
    """Solve curvature(x) = right by conjugate gradients; stop early in a direction that curves downward."""
    x, rest, step = torch.zeros_like(right), right, right
    square = float(rest @ rest)
    first, used = square, 0
    while used < max(most, 1) and square > tolerance**2 * first:
        bent = curvature(step)
        used += 1
        bend = float(step @ bent)
        if bend <= 0:
            return (x if used > 1 else right), used
        x = x + square / bend * step
        rest = rest - square / bend * bent
        square, previous = float(rest @ rest), square
        step = rest + square / previous * step
    return x, used


def _relative(part: Tensor, whole: Tensor) -> float:
    wrong, size = float(part.abs().max()), float(whole.abs().max())
    return wrong / size if size else math.inf if wrong else 0.0


def _weights(network: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


def _times(path: Tensor, factors: Tensor) -> Tensor:
    """Each row of a path times its factor."""
    return path * factors.reshape(-1, *[1] * (path.dim() - 1))


def _moved(velocity: Tensor, unit: Tensor) -> Tensor:
    """The w of a velocity. A weight with β = 0 that rests costs nothing."""
    return torch.where(velocity == 0, 0.0, velocity / unit)
