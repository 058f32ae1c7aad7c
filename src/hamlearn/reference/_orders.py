"""Parallel and sequential order, integrated by Euler's method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch.utils._pytree import tree_map

from hamlearn.credit import Cleared, Credit
from hamlearn.hyper import Hyper
from hamlearn.networks import Network
from hamlearn.reference._equations import (
    Loss,
    ReferenceReport,
    ReferenceState,
    add,
    detach,
    f_h,
    f_y,
    gradient,
    h0_for,
    hyper_at,
    inner,
    leaf,
    start,
    tau_of,
)
from hamlearn.state import Sample


def run(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    samples: Iterable[Sample],
    order: str = "sequential",
    credit: Credit = Cleared(),  # noqa: B008 (frozen)
    reset_h: str = "boundary",
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
            h0 = h0_for(network, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0) if fresh else state.z)
        if not credit.carries:
            state = replace(state, z=tree_map(torch.zeros_like, state.h))
        step = parallel_step if order == "parallel" else sequential_step
        state, report = step(network, loss, hyper, state, sample)
        fresh = sample.boundary
        if sample.boundary:
            h0 = h0_for(network, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0))
        yield state, report


def parallel_step(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample
) -> tuple[ReferenceState, ReferenceReport]:
    """Algorithm alg:hlz: all right-hand sides at time t, then x ← x + τẋ for all four."""
    tau = tau_of(hyper, state, sample)
    rates, report = parallel_rates(network, loss, hyper, state, sample, tau)
    return (
        ReferenceState(
            t=state.t + tau,
            h=add(state.h, tau, rates.h),  # eq:eulera
            z=add(state.z, tau, rates.z),
            theta=add(state.theta, tau, rates.theta),  # eq:eulera
            omega=add(state.omega, tau, rates.omega),
            updates=state.updates + (sample.target is not None),
        ),
        report,
    )


def parallel_rates(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample, tau: float
) -> tuple[ReferenceState, ReferenceReport]:
    """The four right-hand sides at `state`: ḣ, ż, θ̇ and ω̇, in the fields of a state."""
    s, phi, eta, eta_z, beta = hyper_at(hyper, state)
    h, z = leaf(state.h), state.z
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau)  # eq:hesa
    y = f_y(network, theta, sample.u, h)  # eq:netsplitc
    L = loss(y, sample.target) if sample.target is not None else None
    H = inner(z, dh) if L is None else phi * L + inner(z, dh)  # eq:hrestricted
    dH_dh = gradient(H, h)
    dH_dtheta = gradient(H, theta)
    dtheta = {n: -(beta(n) * state.omega[n]) for n in theta}  # eq:hesb
    dz = tree_map(lambda g, a: -s * g - eta_z * a, dH_dh, z)  # eq:hesc
    domega = {n: -s * dH_dtheta[n] - eta * state.omega[n] for n in theta}  # eq:hesd
    rates = ReferenceState(1.0, detach(dh), dz, dtheta, domega)
    return rates, ReferenceReport(state.t, detach(y), detach(L), detach(H))


def sequential_step(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample
) -> tuple[ReferenceState, ReferenceReport]:
    """State first, loss on the new state, then z, then ω from the new z, then θ from the new ω."""
    tau = tau_of(hyper, state, sample)
    s, phi, eta, eta_z, beta = hyper_at(hyper, state)
    h, z, omega = leaf(state.h), state.z, state.omega
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau)  # eq:hesa
    h1 = leaf(add(state.h, tau, detach(dh)))  # eq:figliotop
    y = f_y(network, theta, sample.u, h1)
    L = loss(y, sample.target) if sample.target is not None else None
    dL_dh1 = gradient(L, h1)
    dL_dtheta = gradient(L, theta)
    dzf_dh = gradient(inner(z, dh), h)
    z1 = tree_map(  # eq:hesc, eq:figliobottom
        lambda a, l, j: (1 - tau * eta_z) * a - s * tau * (phi * l + j), z, dL_dh1, dzf_dh
    )
    dzf_dtheta = gradient(inner(z1, dh), theta)
    omega1 = {  # eq:hesd, eq:fanculo; the first term is ωh's, the second ωy's
        n: (1 - tau * eta) * omega[n] - s * tau * dzf_dtheta[n] - s * tau * phi * dL_dtheta[n] for n in theta
    }
    theta1 = {n: state.theta[n] - tau * (beta(n) * omega1[n]) for n in theta}  # eq:hesb, eq:fanculo2
    H = inner(z, dh) if L is None else phi * L + inner(z, dh)  # eq:hrestricted
    report = ReferenceReport(state.t, detach(y), detach(L), detach(H))
    updates = state.updates + (sample.target is not None)
    return ReferenceState(state.t + tau, detach(h1), z1, theta1, omega1, updates), report
