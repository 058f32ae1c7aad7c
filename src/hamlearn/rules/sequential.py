"""Sequential order: state, output, z, ω and θ one after the other, which recovers gradient learning."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import Scale, add_, add_some_, scaled
from hamlearn.credit import Credit
from hamlearn.rates import Rates
from hamlearn.rules.derivatives import coupling, instantaneous_loss, integrate_costate, partials, vjp
from hamlearn.rules.running_cost import added, running_cost
from hamlearn.rules.system import Instant, Integration, Order, Outcome, System
from hamlearn.rules.transition import as_state, end_points, next_state, rate
from hamlearn.sample import Sample, reported
from hamlearn.state.carry import Carry


class Sequential(Order):
    """State, loss on the new state, z, ω from the new z; θ then follows the new ω.

    h⁺ = h + τ f_h; z⁺ = (1 − τη_z) z − sτ [φ ∂L/∂h⁺ + z·∂f_h/∂h]; ωh⁺ = (1 − τη) ωh − sτ z⁺·∂f_h/∂θh;
    ωy⁺ = (1 − τη) ωy − sτφ ∂L/∂θy. A running cost joins φL, at h⁺ too. On the clock of events, h⁺ and its
    Jacobians are those of the true τ, and every other τ is the nominal one (`Rates.stride`).
    """

    def __init__(self, system: System, credit: Credit) -> None:
        super().__init__(system, credit)
        network = system.network
        # With z = 0 at the start and s = −1, z⁺·∂f_h/∂θh is τφ ∂L/∂θh along h⁺: one differentiation
        # of the loss through both nets gives every term.
        through_both = credit.clears and system.hyper.s == -1
        self.one_pass = through_both or network.state is None
        self.needs_h = not (through_both and network.memoryless) or system.running_cost is not None

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """New h, z and ω, in this order."""
        if self.one_pass:
            return _one_pass(self.system, carry, now.sample, now.rates)
        z0 = [self.credit.enter(leaf) for leaf in carry.z]
        return _two_passes(self.system, carry, now.sample, now.rates, z0, past=not self.credit.clears)


def _one_pass(system: System, carry: Carry, sample: Sample, rates: Rates) -> Outcome:
    """z⁺ and ω from one differentiation of the cost at h⁺, if there is a state net, and at y."""
    network, costs = system.network, system.running_cost is not None
    learns = sample.target is not None or costs
    h_next: list[Tensor] = []
    dh: list[Tensor] = []
    spec, seen = None, None
    with _gradients(learns):
        if network.state is not None:
            h_next, spec, result = next_state(network, carry.h, carry.spec, sample.u, rates)
            dh = rate(network, carry.h, result, rates.tau) if costs else []
            h_next = end_points(h_next, apart=costs) if learns else h_next
            seen = trees.unflatten(h_next, spec)
        y = network.output_net(sample.u, seen)
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
        R = running_cost(system, sample.u, h_next, dh, spec, y, system.theta, rates.t) if costs else None
    h, z, dL, gain = [leaf.detach() for leaf in h_next], list[Tensor](), None, -rates.s * rates.stride * rates.phi
    if R is not None:
        outcome = Outcome(h, z, carry.omega, reported(y), None, None, spec)
        return _with_running_cost(system, carry, rates, h_next, L, R, outcome)
    if L is not None:
        grads = vjp([L], [None], [*h_next, *system.theta])
        z, dL = grads[: len(h)], grads[len(h) :]
        if z and (isinstance(gain, Tensor) or gain != 1.0):
            z = scaled(z, gain)
    elif h:
        z = [torch.zeros_like(leaf) for leaf in h]
    loss = None if L is None else reported(L)
    outcome = Outcome(h, z, carry.omega, reported(y), loss, None, spec, learned=L is not None)
    return _integrate(system, carry, dL, system.decay(rates), gain, rates.phi, outcome)


def _with_running_cost(
    system: System,
    carry: Carry,
    rates: Rates,
    h_next: list[Tensor],
    L: Tensor | None,
    R: Tensor,
    outcome: Outcome,
) -> Outcome:
    """The outcome with z and ω from φL + R, which are differentiated as one."""
    n, gain, drive, theta = len(h_next), -rates.s * rates.stride, system.drive, system.theta
    grads = vjp([R if L is None else rates.phi * L + R], [None], [*h_next, *theta])
    decay, learned = system.decay(rates), L is not None
    omega = drive.before(carry.omega, decay)
    add_(omega, grads[n:], gain)
    outcome.omega, outcome.v = drive.gather(
        carry.omega, carry.v, omega, theta, decay, gain * rates.phi, learned=learned
    )
    outcome.z, outcome.learned = scaled(grads[:n], gain), learned
    outcome.loss = None if L is None else reported(L)
    outcome.coupling = added(drive.coupled(None, theta, rates.phi) if learned else None, R)
    return outcome


def _integrate(
    system: System,
    carry: Carry,
    dL: list[Tensor] | None,
    decay: Scale,
    gain: Scale,
    phi: Scale,
    outcome: Outcome,
) -> Outcome:
    """ω⁺ = decay·ω + gain·∂L/∂θ; if weights are large, the engine does it in place."""
    if not system.drive.plain:
        outcome.omega, outcome.v = system.drive.enter(carry.omega, carry.v, dL, system.theta, decay, gain)
        if dL is not None:
            outcome.coupling = system.drive.coupled(None, system.theta, phi)
    elif system.large and isinstance(decay, float) and isinstance(gain, float):
        outcome.integration = Integration(dL, decay, gain)
    else:
        outcome.omega = integrate_costate(carry.omega, dL, decay, gain)
    return outcome


def _two_passes(
    system: System, carry: Carry, sample: Sample, rates: Rates, z0: list[Tensor], *, past: bool
) -> Outcome:
    """z⁺ by one differentiation of the cost at h⁺ and one of z·f_h at h; then ω from z⁺.

    p = ∂R/∂ḣ joins z beside f_h; toward h of before only if `past`, since a credit that clears z clears that too.
    """
    tau, stride, eta_z, phi, s = rates.tau, rates.stride, rates.eta_z, rates.phi, rates.s
    network, theta = system.network, system.theta
    with torch.enable_grad():
        h = [leaf.detach().requires_grad_() for leaf in carry.h]
        spec = carry.spec
        result = as_state(network.state_net(sample.u, trees.unflatten(h, spec), rates.t, tau), h, spec)
        is_next = network.transition == "next"
        h1 = [r.detach() if is_next else a.detach() + tau * r.detach() for a, r in zip(h, result, strict=True)]
        h_next = [leaf.requires_grad_() for leaf in h1]
        y = network.output_net(sample.u, trees.unflatten(h_next, spec))
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
        dh = [
            leaf.detach().requires_grad_(system.running_cost is not None) for leaf in rate(network, h, result, tau)
        ]
        R = running_cost(system, sample.u, h_next, dh, spec, y, theta, rates.t)
    # By all weights, also those of the state net: the loss or the output net may read them directly. `weight` is
    # what the derivatives still lack.
    cost, weight, points = (L, phi, h_next) if R is None else (R, 1.0, [*h_next, *dh])
    if R is not None and L is not None:
        cost = phi * L + R
    found = [] if cost is None else partials([cost], [None], [*points, *theta])
    dL, p = found[: len(h_next)], found[len(h_next) : len(points)]
    # Both meet the Jacobians of f_h: z per unit of τ, p per unit of the stride.
    extra = [None if leaf is None else leaf * (stride / tau) for leaf in p] or [None] * len(z0)
    zJ = vjp(result, _joined(z0, extra) if past else z0, h, keep=True)
    # Per unit of τ, f_h is the result itself, or (result − h)/τ if the net returns the next state.
    unit = 1.0 if is_next else tau
    z = []
    for i, (z_i, zJ_i) in enumerate(zip(_joined(z0, extra) if past else z0, zJ, strict=True)):
        flow = (zJ_i - z_i) if is_next else tau * zJ_i
        own = dL[i] if dL else None
        if own is not None:
            flow = flow + (stride * weight) * own
        z.append((1 - stride * eta_z) * z0[i] - s * flow)
    drive, decay, gain, learned, v = system.drive, system.decay(rates), -s * stride * phi, L is not None, carry.v
    omega = drive.before(carry.omega, decay)
    add_some_(omega, partials(result, _joined(z, extra), theta), -s * unit)
    add_some_(omega, found[len(points) :] or [None] * len(theta), -s * stride * weight)
    coupled = added(coupling(z0, dh), R)
    omega, v = drive.gather(carry.omega, v, omega, theta, decay, gain, learned=learned)
    if learned:
        coupled = drive.coupled(coupled, theta, phi)
    h1 = [leaf.detach() for leaf in h1]
    return Outcome(
        h1, z, omega, reported(y), None if L is None else reported(L), coupled, spec, learned=learned, v=v
    )


def _joined(z: list[Tensor], extra: Sequence[Tensor | None]) -> list[Tensor]:
    return [one if other is None else one + other for one, other in zip(z, extra, strict=True)]


def _gradients(needed: bool) -> AbstractContextManager[Any]:
    """Gradients on or off, which costs nothing where they are so already."""
    return _AS_IT_IS if torch.is_grad_enabled() is needed else torch.set_grad_enabled(needed)


_AS_IT_IS = nullcontext()
