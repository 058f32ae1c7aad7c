"""Parallel and sequential order, integrated by Euler's method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from hamlearn._base.torch_private import tree_map
from hamlearn.credit import Cleared, Credit, Sensitivity
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.reference._equations import (
    Loss,
    ReferenceReport,
    ReferenceState,
    RunningCost,
    add,
    decayed,
    detach,
    f_h,
    f_y,
    followed,
    gradient,
    h0_for,
    hyper_at,
    inner,
    leaf,
    left,
    nominal_of,
    penalty,
    running,
    start,
    tau_of,
)
from hamlearn.reference._sensitivity import first_sensitivity, sensitivity_step
from hamlearn.sample import Sample


def run(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    samples: Iterable[Sample],
    order: str = "sequential",
    credit: Credit = Cleared(),  # noqa: B008 (frozen)
    reset_h: str = "boundary",
    running_cost: RunningCost | None = None,
) -> Iterator[tuple[ReferenceState, ReferenceReport]]:
    """Integrate a stream by Euler's method; yields the state after each sample, and what was seen there.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1))
        >>> samples = [hl.Sample(torch.ones(1), torch.zeros(1))] * 3
        >>> for state, report in run(net, torch.nn.functional.mse_loss, hl.Hyper(), samples):
        ...     assert report.hamiltonian == report.loss
        >>> state.t
        3.0
    """
    state = start(network)
    fresh = True
    for sample in samples:
        if fresh or reset_h == "sample":
            h0 = h0_for(network, state.theta, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0) if fresh else state.z)
        state = replace(state, z=tree_map(credit.enter, state.z))
        if isinstance(credit, Sensitivity):
            if fresh:
                state = replace(state, E=first_sensitivity(network, state.theta, sample.u))
            state, report = sensitivity_step(network, loss, hyper, state, sample, credit, order, running_cost)
        elif order == "parallel":
            state, report = parallel_step(network, loss, hyper, state, sample, running_cost)
        else:
            past = not credit.clears
            state, report = sequential_step(network, loss, hyper, state, sample, running_cost, past=past)
        fresh = sample.boundary
        if sample.boundary:
            h0 = h0_for(network, state.theta, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0))
        yield state, report


def parallel_step(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    state: ReferenceState,
    sample: Sample,
    running_cost: RunningCost | None = None,
) -> tuple[ReferenceState, ReferenceReport]:
    """Algorithm 1: all right-hand sides at time t, then x ← x + τẋ for all four.

    On the clock of events, τ0 is the nominal step: the state and z·∂f_h flow by τ, L and R enter and the weights
    move by τ0, and costates keep (1 − τ0η)^(τ/τ0). On the continuous clock, τ0 is τ.

    Example:
        >>> from dataclasses import replace
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> sample = hl.Sample(torch.ones(1, 2), torch.ones(1, 1))
        >>> mse, h = torch.nn.functional.mse_loss, torch.zeros(1, 3)
        >>> state = replace(reference.start(net), h=h, z=h)
        >>> after, report = reference.parallel_step(net, mse, hl.Hyper(), state, sample)
        >>> all(torch.equal(after.theta[name], weight) for name, weight in state.theta.items())  # ω was 0
        True
        >>> after.z.any().item()
        True
    """
    tau = tau_of(hyper, state, sample)
    tau0 = nominal_of(hyper, state, tau)
    s, phi, eta, eta_z, beta = hyper_at(hyper, state)
    h, z, omega = leaf(state.h), state.z, state.omega
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau, state.t)  # Eq. E⋆1
    y = f_y(network, theta, sample.u, h)  # Eq. 4
    L = loss(y, sample.target) if sample.target is not None else None
    R = running(running_cost, sample.u, h, dh, y, theta, state.t)
    learned, rest = L is not None, {n: decayed(hyper, tau0, n, w, state.t) for n, w in state.theta.items()}
    loss_term = None if L is None else L + penalty(hyper, theta)
    dL_dh, dL_dtheta = gradient(L, h), gradient(loss_term, theta)
    dR_dh, dR_dtheta = gradient(R, h), gradient(R, theta)
    dzf_dh, dzf_dtheta = gradient(inner(z, dh), h), gradient(inner(z, dh), theta)
    h1 = add(state.h, tau, detach(dh))  # Eq. 6
    theta1 = {n: rest[n] - tau0 * (beta(n, state.v, state.updates) * omega[n]) for n in theta}  # Eq. E⋆2
    keep, keep_z = left(eta, tau0, tau), left(eta_z, tau0, tau)
    z1 = tree_map(  # Eq. E⋆3
        lambda a, l, r, j: keep_z * a - s * (tau0 * (phi * l + r) + tau * j), z, dL_dh, dR_dh, dzf_dh
    )
    entered = {n: -s * (tau0 * (phi * dL_dtheta[n] + dR_dtheta[n]) + tau * dzf_dtheta[n]) for n in theta}
    omega1 = {n: keep * omega[n] + entered[n] for n in theta}  # Eq. E⋆4
    v1 = followed(hyper, state, entered, tau0 * phi, learned)
    H = inner(z, dh) if loss_term is None else phi * loss_term + inner(z, dh)  # Eq. 9
    H = H if R is None else H + R
    report = ReferenceReport(state.t, detach(y), detach(L), detach(H))
    return ReferenceState(state.t + tau, h1, z1, theta1, omega1, state.updates + learned, v1), report


def parallel_rates(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample, tau: float
) -> tuple[ReferenceState, ReferenceReport]:
    """The four right-hand sides at `state`: ḣ, ż, θ̇ and ω̇, in the fields of a state.

    Example:
        >>> from dataclasses import replace
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> sample = hl.Sample(torch.ones(1, 2), torch.ones(1, 1))
        >>> mse, h = torch.nn.functional.mse_loss, torch.zeros(1, 3)
        >>> state = replace(reference.start(net), h=h, z=h)
        >>> rates, _ = reference.parallel_rates(net, mse, hl.Hyper(), state, sample, tau=1.0)
        >>> after, _ = reference.parallel_step(net, mse, hl.Hyper(), state, sample)
        >>> torch.allclose(after.h, h + rates.h)
        True
    """
    s, phi, eta, eta_z, beta = hyper_at(hyper, state)
    h, z = leaf(state.h), state.z
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau, state.t)  # Eq. E⋆1
    y = f_y(network, theta, sample.u, h)  # Eq. 4
    L = loss(y, sample.target) if sample.target is not None else None
    H = inner(z, dh) if L is None else phi * (L + penalty(hyper, theta)) + inner(z, dh)  # Eq. 9
    dH_dh = gradient(H, h)
    dH_dtheta = gradient(H, theta)
    dtheta = {n: -(beta(n, state.v, state.updates) * state.omega[n]) for n in theta}  # Eq. E⋆2
    dz = tree_map(lambda g, a: -s * g - eta_z * a, dH_dh, z)  # Eq. E⋆3
    domega = {n: -s * dH_dtheta[n] - eta * state.omega[n] for n in theta}  # Eq. E⋆4
    rates = ReferenceState(1.0, detach(dh), dz, dtheta, domega)
    return rates, ReferenceReport(state.t, detach(y), detach(L), detach(H))


def sequential_step(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    state: ReferenceState,
    sample: Sample,
    running_cost: RunningCost | None = None,
    *,
    past: bool = True,
) -> tuple[ReferenceState, ReferenceReport]:
    """State first, loss on the new state, then z, then ω from the new z, then θ from the new ω.

    On the clock of events, τ0 is the nominal step: the new state and its derivatives ∂h⁺/∂h − 1 = τ ∂f_h/∂h and
    ∂h⁺/∂θ = τ ∂f_h/∂θ are those of the step that was really made, the loss enters and the weights move by τ0, and
    costates keep (1 − τ0η)^(τ/τ0). On the continuous clock, τ0 is τ.

    The running cost R is taken at h⁺ and y, with ḣ of the step: p = ∂R/∂ḣ joins z beside f_h, with gain τ0. Toward
    h of before, p joins only if `past`, as it is unless the credit clears z.

    Example:
        >>> from dataclasses import replace
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> sample = hl.Sample(torch.ones(1, 2), torch.ones(1, 1))
        >>> mse, h = torch.nn.functional.mse_loss, torch.zeros(1, 3)
        >>> state = replace(reference.start(net), h=h, z=h)
        >>> after, report = reference.sequential_step(net, mse, hl.Hyper(), state, sample)
        >>> mse(net.output_net(sample.u, net.state(sample.u, h)), sample.target).isclose(report.loss).item()
        True
    """
    tau = tau_of(hyper, state, sample)
    tau0 = nominal_of(hyper, state, tau)
    s, phi, eta, eta_z, beta = hyper_at(hyper, state)
    h, z, omega = leaf(state.h), state.z, state.omega
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau, state.t)  # Eq. E⋆1
    h1 = leaf(add(state.h, tau, detach(dh)))  # Eq. 13
    y = f_y(network, theta, sample.u, h1)
    L = loss(y, sample.target) if sample.target is not None else None
    rate = leaf(detach(dh))
    R = running(running_cost, sample.u, h1, rate, y, theta, state.t)
    learned, loss_term = L is not None, None if L is None else L + penalty(hyper, theta)
    dL_dh1, dR_dh1, p = gradient(L, h1), gradient(R, h1), gradient(R, rate)
    dL_dtheta, dR_dtheta = gradient(loss_term, theta), gradient(R, theta)
    pf = inner(p, dh)
    dzf_dh, dpf_dh = gradient(inner(z, dh), h), gradient(pf if past else None, h)
    keep, keep_z = left(eta, tau0, tau), left(eta_z, tau0, tau)
    z1 = tree_map(  # Eq. E⋆3, 14
        lambda a, l, r, j, k: keep_z * a - s * (tau0 * (phi * l + r + k) + tau * j),
        *(z, dL_dh1, dR_dh1, dzf_dh, dpf_dh),
    )
    dzf_dtheta, dpf_dtheta = gradient(inner(z1, dh), theta), gradient(pf, theta)
    # The first term is ωh's, the second ωy's.
    entered = {
        n: -s * tau * dzf_dtheta[n] - s * tau0 * (phi * dL_dtheta[n] + dR_dtheta[n] + dpf_dtheta[n]) for n in theta
    }
    omega1 = {n: keep * omega[n] + entered[n] for n in theta}  # Eq. E⋆4, 11
    v1 = followed(hyper, state, entered, tau0 * phi, learned)
    k, rest = state.updates + learned, {n: decayed(hyper, tau0, n, w, state.t) for n, w in state.theta.items()}
    theta1 = {n: rest[n] - tau0 * (beta(n, v1, k) * omega1[n]) for n in theta}  # Eq. E⋆2, 12
    H = inner(z, dh) if loss_term is None else phi * loss_term + inner(z, dh)  # Eq. 9
    H = H if R is None else H + R
    report = ReferenceReport(state.t, detach(y), detach(L), detach(H))
    return ReferenceState(state.t + tau, detach(h1), z1, theta1, omega1, k, v1), report
