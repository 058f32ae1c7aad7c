"""Sequential order: state, output, z, ω and θ one after the other, which recovers gradient learning."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import Scale, add_some_, scaled
from hamlearn.credit import Credit
from hamlearn.rates import Rates
from hamlearn.rules.derivatives import coupling, instantaneous_loss, integrate_costate, partials, vjp
from hamlearn.rules.system import Instant, Integration, Order, Outcome, System
from hamlearn.rules.transition import as_state, end_points, next_state, rate
from hamlearn.sample import Sample, reported
from hamlearn.state.carry import Carry


class Sequential(Order):
    """State, loss on the new state, z, ω from the new z; θ then follows the new ω.

    h⁺ = h + τ f_h; z⁺ = (1 − τη_z) z − sτ [φ ∂L/∂h⁺ + z·∂f_h/∂h]; ωh⁺ = (1 − τη) ωh − sτ z⁺·∂f_h/∂θh;
    ωy⁺ = (1 − τη) ωy − sτφ ∂L/∂θy. On the clock of events, h⁺ and its Jacobians are those of the true τ, and every
    other τ is the nominal one (`Rates.stride`).
    """

    def __init__(self, system: System, credit: Credit) -> None:
        super().__init__(system, credit)
        # With z = 0 at the start and s = −1, z⁺·∂f_h/∂θh is τφ ∂L/∂θh along h⁺: one differentiation
        # of the loss through both nets gives every term.
        self.one_pass = credit.clears and system.hyper.s == -1
        self.stateless = system.network.state is None
        self.needs_h = not (self.one_pass and system.network.memoryless)

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """New h, z and ω, in this order."""
        if self.stateless:
            return _output_only(self.system, carry, now.sample, now.rates)
        if self.one_pass:
            return _one_pass(self.system, carry, now.sample, now.rates)
        z0 = [self.credit.enter(leaf) for leaf in carry.z]
        return _two_passes(self.system, carry, now.sample, now.rates, z0)


def _output_only(system: System, carry: Carry, sample: Sample, rates: Rates) -> Outcome:
    with _gradients(sample.target is not None):
        y = system.network.output_net(sample.u, None)
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
    dL = None if L is None else vjp([L], [None], system.theta)
    decay, gain = system.decay(rates), -rates.s * rates.stride * rates.phi
    outcome = Outcome(
        [], [], carry.omega, reported(y), None if L is None else reported(L), None, learned=L is not None
    )
    return _integrate(system, carry, dL, decay, gain, rates.phi, outcome)


def _one_pass(system: System, carry: Carry, sample: Sample, rates: Rates) -> Outcome:
    with _gradients(sample.target is not None):
        h_next, spec = next_state(system.network, carry.h, carry.spec, sample.u, rates.tau)
        if sample.target is not None:
            h_next = end_points(h_next)
        y = system.network.output_net(sample.u, trees.unflatten(h_next, spec))
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
    gain = rates.stride * rates.phi
    if L is None:
        z, dL = [torch.zeros_like(leaf) for leaf in h_next], None
    else:
        grads = vjp([L], [None], [*h_next, *system.theta])
        z, dL = grads[: len(h_next)], grads[len(h_next) :]
        if isinstance(gain, Tensor) or gain != 1.0:
            z = scaled(z, gain)
    h = [leaf.detach() for leaf in h_next]
    outcome = Outcome(
        h, z, carry.omega, reported(y), None if L is None else reported(L), None, spec, learned=L is not None
    )
    return _integrate(system, carry, dL, system.decay(rates), gain, rates.phi, outcome)


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


def _two_passes(system: System, carry: Carry, sample: Sample, rates: Rates, z0: list[Tensor]) -> Outcome:
    tau, stride, eta_z, phi, s = rates.tau, rates.stride, rates.eta_z, rates.phi, rates.s
    network, theta = system.network, system.theta
    with torch.enable_grad():
        h = [leaf.detach().requires_grad_() for leaf in carry.h]
        spec = carry.spec
        result = as_state(network.state_net(sample.u, trees.unflatten(h, spec)), h, spec)
        is_next = network.transition == "next"
        h1 = [r.detach() if is_next else a.detach() + tau * r.detach() for a, r in zip(h, result, strict=True)]
        h_next = [leaf.requires_grad_() for leaf in h1]
        y = network.output_net(sample.u, trees.unflatten(h_next, spec))
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
    # By all weights, also those of the state net: the loss or the output net may read them directly.
    dL = [] if L is None else partials([L], [None], [*h_next, *theta])
    zJ = vjp(result, z0, h, keep=True)
    # Per unit of τ, f_h is the result itself, or (result − h)/τ if the net returns the next state.
    unit = 1.0 if is_next else tau
    z = []
    for i, (z_i, zJ_i) in enumerate(zip(z0, zJ, strict=True)):
        flow = (zJ_i - z_i) if is_next else tau * zJ_i
        own = dL[i] if L is not None else None
        if own is not None:
            flow = flow + (stride * phi) * own
        z.append((1 - stride * eta_z) * z_i - s * flow)
    drive, decay, gain, learned, v = system.drive, system.decay(rates), -s * stride * phi, L is not None, carry.v
    omega = drive.before(carry.omega, decay)
    add_some_(omega, partials(result, z, theta), -s * unit)
    if L is not None:
        add_some_(omega, dL[len(h_next) :], gain)
    coupled: Tensor | None = coupling(z0, rate(network, h, result, tau))
    omega, v = drive.gather(carry.omega, v, omega, theta, decay, gain, learned=learned)
    if learned:
        coupled = drive.coupled(coupled, theta, phi)
    h1 = [leaf.detach() for leaf in h1]
    return Outcome(
        h1, z, omega, reported(y), None if L is None else reported(L), coupled, spec, learned=learned, v=v
    )


def _gradients(needed: bool) -> AbstractContextManager[Any]:
    """Gradients on or off, which costs nothing where they are so already."""
    return _AS_IT_IS if torch.is_grad_enabled() is needed else torch.set_grad_enabled(needed)


_AS_IT_IS = nullcontext()
