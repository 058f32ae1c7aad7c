"""Sequential order: state, output, z, ω and θ one after the other, which recovers gradient learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.credit import Credit
from hamlearn.hamiltonian import check_same_shapes, coupling, instantaneous_loss, vjp
from hamlearn.hyper import Hyper, Rates
from hamlearn.networks import Network
from hamlearn.state import Sample
from hamlearn.system import Carry, Outcome, System


def sequential(system: System, carry: Carry, sample: Sample, rates: Rates, credit: Credit) -> Outcome:
    """State, loss on the new state, z, ω from the new z; θ then follows the new ω (section sec:grad).

    h⁺ = h + τ f_h; z⁺ = (1 − τη_z) z − sτ [φ ∂L/∂h⁺ + z·∂f_h/∂h]; ωh⁺ = (1 − τη) ωh − sτ z⁺·∂f_h/∂θh;
    ωy⁺ = (1 − τη) ωy − sτφ ∂L/∂θy.
    """
    if system.network.state is None:
        return _output_only(system, carry, sample, rates)
    if is_one_pass(system.hyper, credit):
        return _one_pass(system, carry, sample, rates)
    return _two_passes(system, carry, sample, rates, credit)


def is_one_pass(hyper: Hyper, credit: Credit) -> bool:
    """Whether one differentiation of the loss gives every term.

    With z = 0 at the start and s = −1, z⁺·∂f_h/∂θh is τφ ∂L/∂θh along h⁺ (eq:hesdbla).
    """
    return not credit.carries and hyper.s == -1


def _output_only(system: System, carry: Carry, sample: Sample, rates: Rates) -> Outcome:
    with torch.set_grad_enabled(sample.target is not None):
        y = system.network.output_net(sample.u, None)
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target)
    grads = None if L is None else vjp([L], [None], system.theta)
    omega = _costate(carry.omega, grads, 1 - rates.tau * rates.eta, -rates.s * rates.tau * rates.phi)
    return Outcome([], [], omega, _tree.detach(y), _detached(L), None)


def _one_pass(system: System, carry: Carry, sample: Sample, rates: Rates) -> Outcome:
    tau = rates.tau
    with torch.set_grad_enabled(sample.target is not None):
        h_next, spec = _next_state(system.network, carry, sample.u, tau)
        if sample.target is not None:
            h_next = [_end_point(leaf, alone=len(h_next) == 1) for leaf in h_next]
        y = system.network.output_net(sample.u, _tree.unflatten(h_next, spec))
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target)
    decay, gain = 1 - tau * rates.eta, tau * rates.phi
    if L is None:
        z = [torch.zeros_like(leaf) for leaf in h_next]
        omega = _costate(carry.omega, None, decay, gain)
    else:
        grads = vjp([L], [None], [*h_next, *system.theta])
        z = list(torch._foreach_mul(grads[: len(h_next)], gain))
        omega = _costate(carry.omega, grads[len(h_next) :], decay, gain)
    h = [leaf.detach() for leaf in h_next]
    return Outcome(h, z, omega, _tree.detach(y), _detached(L), None, spec)


def _end_point(leaf: Tensor, *, alone: bool) -> Tensor:
    """A part of h⁺ to differentiate by, of which no other part of h⁺ is made (an LSTM's h is made of its c)."""
    if not leaf.requires_grad:
        return leaf.detach().requires_grad_()
    return leaf if alone else leaf.view_as(leaf)


def _next_state(network: Network, carry: Carry, u: Any, tau: float) -> tuple[list[Tensor], _tree.Spec]:
    """h⁺ = h + τ f_h, which is ĥ itself where the state net returns the next state (eq:figliodi1)."""
    h = None if network.memoryless else _tree.unflatten(carry.h, carry.spec)
    result, spec = _tree.flatten(network.state_net(u, h))
    if carry.h:
        check_same_shapes("the state net", result, carry.h)
    if network.transition == "next":
        return result, spec
    return list(torch._foreach_add(carry.h, result, alpha=tau)), spec


def _two_passes(system: System, carry: Carry, sample: Sample, rates: Rates, credit: Credit) -> Outcome:
    tau, eta, eta_z, phi, s = rates
    network = system.network
    z0 = carry.z if credit.carries else [torch.zeros_like(leaf) for leaf in carry.z]
    with torch.enable_grad():
        h = [leaf.detach().requires_grad_() for leaf in carry.h]
        result, spec = _tree.flatten(network.state_net(sample.u, _tree.unflatten(h, carry.spec)))
        check_same_shapes("the state net", result, h)
        is_next = network.transition == "next"
        h1 = [
            r.detach() if is_next else a.detach() + tau * r.detach() for a, r in zip(h, result, strict=True)
        ]
        h_next = [leaf.requires_grad_() for leaf in h1]
        y = network.output_net(sample.u, _tree.unflatten(h_next, spec))
        L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target)
    theta_h = [system.theta[i] for i in system.in_state]
    theta_y = [system.theta[i] for i in system.in_output]
    dL = [] if L is None else vjp([L], [None], [*h_next, *theta_y])
    zJ = vjp(result, z0, h, keep=True)
    # Per unit of τ, f_h is the result itself, or (result − h)/τ where the net returns the next state.
    unit = 1.0 if is_next else tau
    z = []
    for i, (z_i, zJ_i) in enumerate(zip(z0, zJ, strict=True)):
        flow = (zJ_i - z_i) if is_next else tau * zJ_i
        if L is not None:
            flow = flow + (tau * phi) * dL[i]
        z.append((1 - tau * eta_z) * z_i - s * flow)
    omega = list(torch._foreach_mul(carry.omega, 1 - tau * eta))
    _add_at(omega, system.in_state, vjp(result, z, theta_h), -s * unit)
    if L is not None:
        _add_at(omega, system.in_output, dL[len(h_next) :], -s * tau * phi)
    dh = [(r - a) / tau if is_next else r for a, r in zip(h, result, strict=True)]
    return Outcome(
        [leaf.detach() for leaf in h1], z, omega, _tree.detach(y), _detached(L), coupling(z0, dh), spec
    )


def _costate(omega: list[Tensor], grads: list[Tensor] | None, decay: float, gain: float) -> list[Tensor]:
    """ω⁺ = decay·ω + gain·g, rounded exactly as PyTorch's momentum buffer is."""
    if decay == 0.0 and grads is not None:
        return grads if gain == 1.0 else list(torch._foreach_mul(grads, gain))
    new = list(torch._foreach_mul(omega, decay))
    if grads is not None:
        torch._foreach_add_(new, grads, alpha=gain)
    return new


def _add_at(omega: list[Tensor], indices: list[int], grads: list[Tensor], gain: float) -> None:
    if indices:
        torch._foreach_add_([omega[i] for i in indices], grads, alpha=gain)


def _detached(L: Tensor | None) -> Tensor | None:
    return None if L is None else L.detach()
