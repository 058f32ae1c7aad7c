"""Parallel order (Algorithm 1): every right-hand side at time t, then every update. Fully local in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import devices_of, drawing, generators
from hamlearn._base.scale import Scale, add_, plus, scaled, seed
from hamlearn.credit import Credit
from hamlearn.errors import ConfigError
from hamlearn.integrators import Euler, Integrator
from hamlearn.rules.derivatives import coupling, instantaneous_loss, vjp
from hamlearn.rules.running_cost import added, running_cost
from hamlearn.rules.system import Instant, Order, Outcome, System
from hamlearn.rules.transition import as_state, rate
from hamlearn.sample import reported
from hamlearn.state.carry import Carry


class Parallel(Order):
    """All right-hand sides at time t, then all four updates; y is read before h moves (Algorithm 1).

    ḣ = f_h; θ̇ = −β⊙ω; ż = −s ∂H/∂h − η_z z; ω̇ = −s ∂H/∂θ − η ω. The input is held within the step;
    integrators with several stages see the schedules at each stage's own time. On the clock of events the
    state, and with it z·∂f_h, flows by the true τ, all else by the nominal one (`Rates.stride`). An adaptive β is
    that of time t too: the weights move by the ω and the v from before the step.
    """

    reads_next = False

    def __init__(self, system: System, credit: Credit, integrator: Integrator) -> None:
        super().__init__(system, credit)
        self.integrator = integrator
        if system.velocity.adaptive is not None and not isinstance(integrator, Euler):
            raise ConfigError(
                f"an adaptive beta changes from sample to sample, not within the stages of {integrator!r}: "
                "use hl.Euler(), or a beta that does not adapt"
            )

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """One step of the integrator over [h, θ, z, ω]."""
        z0 = [self.credit.enter(leaf) for leaf in carry.z]
        return _step(self.system, carry, z0, now, self.integrator)


def _step(system: System, carry: Carry, z0: list[Tensor], now: Instant, integrator: Integrator) -> Outcome:
    sample, rates = now.sample, now.rates
    n, m, tau, stride = len(carry.h), len(system.theta), rates.tau, rates.stride
    x0 = [*carry.h, *system.theta, *z0, *carry.omega]
    seen: list[Outcome] = []
    stages = _Stages(system, several=not isinstance(integrator, Euler))
    drive = system.drive

    def derivative(time: float, x: list[Tensor]) -> list[Tensor]:
        h, theta, z, omega = x[:n], x[n : n + m], x[n + m : n + m + n], x[2 * n + m :]
        at = rates if x is x0 else system.hyper.at(time, tau, first=now.first)
        # The network holds the weights of the stage for the loss too, which may read them.
        with torch.enable_grad(), stages.at(theta, start=x is x0) as weights:
            h_in = [leaf.detach().requires_grad_() for leaf in h]
            tree = trees.unflatten(h_in, carry.spec) if h_in else None
            dh: list[Tensor] = []
            if h_in:
                result = as_state(system.network.state_net(sample.u, tree, time, tau), h_in, carry.spec)
                dh = rate(system.network, h_in, result, tau)
            y = system.network.output_net(sample.u, tree)
            L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
            R = running_cost(system, sample.u, h_in, dh, carry.spec, y, weights, time)
            roots = [*([] if L is None else [L]), *([] if R is None else [R]), *dh]
            seeds = [None] * (R is not None) + _stretched(z, tau / stride)
            seeds = seeds if L is None else [seed(L, at.phi), *seeds]
            if weights is system.theta:
                dH = vjp(roots, seeds, [*h_in, *weights])
            else:
                # A loss may also hold the weights themselves, which stay those of the start of the step.
                dH = vjp(roots, seeds, [*h_in, *weights, *system.theta])
                dH[n:] = plus(dH[n : n + m], dH[n + m :], 1.0)
        if L is not None:
            dH[n:] = drive.penalised(dH[n:], theta, at.phi)
        if not seen:
            coupled, v = coupling(z, dh) if dh else None, carry.v
            if L is not None:
                coupled, v = drive.coupled(coupled, theta, at.phi), drive.followed(v, dH[n:], at.phi)
            shown, coupled = None if L is None else L.detach(), added(coupled, R)
            seen.append(Outcome([], [], [], reported(y), shown, coupled, carry.spec, v=v))
        dz = [-at.s * g - at.eta_z * a for g, a in zip(dH[:n], z, strict=True)]
        domega = scaled(dH[n:], -float(at.s))
        add_(domega, omega, -at.eta)
        dtheta = system.velocity.rates(omega, time, theta, carry.v, now.updates)
        return [*(leaf.detach() for leaf in dh), *dtheta, *dz, *domega]

    with torch.no_grad():
        slope = integrator.slope(derivative, now.t, x0, tau)
        outcome = seen[0]
        outcome.h = plus(carry.h, slope[:n], tau) if n else []
        costates = plus([*z0, *carry.omega], slope[n + m :], stride)
    outcome.z, outcome.omega = costates[:n], costates[n:]
    outcome.learned = sample.target is not None
    outcome.dtheta = slope[n : n + m]
    return outcome


def _stretched(z: list[Tensor], by: Scale) -> list[Tensor]:
    """The costate as it meets the Jacobians of f_h: it moves by strides, the state by τ."""
    return z if not z or (isinstance(by, float) and by == 1.0) else scaled(z, by)


class _Stages:
    """Evaluates the nets at the weights of each stage of an integrator.

    The first stage runs the network as it is. Later ones run at other weights, on copies of the buffers and
    with the random numbers of the first, so that dropout masks are one function within a step and running
    statistics move once.
    """

    def __init__(self, system: System, *, several: bool) -> None:
        self.system = system
        self.devices = devices_of(system.theta)
        self.random = None
        if several:
            self.random = generators(self.devices)
            self.buffers = {name: buffer.clone() for name, buffer in system.network.named_buffers()}

    @contextmanager
    def at(self, theta: list[Tensor], *, start: bool) -> Iterator[list[Tensor]]:
        """Within, the network holds the weights of a stage, which are given to be differentiated by."""
        if start:
            yield self.system.theta
            return
        assert self.random is not None
        weights = [weight.detach().requires_grad_() for weight in theta]
        swapped = dict(zip(self.system.names, weights, strict=True))
        swapped |= {name: buffer.clone() for name, buffer in self.buffers.items()}
        with self.system.slots.exchanged(swapped), drawing(self.devices, self.random):
            yield weights
