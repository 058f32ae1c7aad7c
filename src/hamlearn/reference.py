"""The equations, one a line with the paper's label. Slow and plain: the judge of every faster path.

Nothing is updated in place and nothing is shared with the fast paths but the network itself. Weights, costates
and state are passed in and out; trees of tensors are walked leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from hamlearn.credit import Credit, Forward
from hamlearn.hyper import Hyper
from hamlearn.networks import Network
from hamlearn.state import Sample

Weights = dict[str, Tensor]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class ReferenceState:
    """All that is carried from step to step: t, h, z, θ, ω, and how many updates a loss has entered."""

    t: float
    h: Any
    z: Any
    theta: Weights
    omega: Weights
    updates: int = 0


@dataclass(frozen=True)
class ReferenceReport:
    """Output, loss and Hamiltonian of one step."""

    t: float
    y: Any
    loss: Tensor | None
    hamiltonian: Tensor


def start(network: Network) -> ReferenceState:
    """Zero costates, weights as the network has them; h is set by the first sample."""
    theta = {n: p.detach().clone() for n, p in network.named_parameters() if p.requires_grad}
    return ReferenceState(0.0, (), (), theta, {n: torch.zeros_like(p) for n, p in theta.items()})


def run(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    samples: Iterable[Sample],
    order: str = "parallel",
    credit: Credit | None = None,
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
            h0 = _h0(network, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0) if fresh else state.z)
        if not (credit or Forward()).carries:
            state = replace(state, z=tree_map(torch.zeros_like, state.h))
        step = parallel_step if order == "parallel" else sequential_step
        state, report = step(network, loss, hyper, state, sample)
        fresh = sample.boundary
        if sample.boundary:
            h0 = _h0(network, sample.u)
            state = replace(state, h=h0, z=tree_map(torch.zeros_like, h0))
        yield state, report


def parallel_step(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample
) -> tuple[ReferenceState, ReferenceReport]:
    """Algorithm alg:hlz: all right-hand sides at time t, then x ← x + τẋ for all four."""
    tau = _tau(hyper, state, sample)
    rates, report = parallel_rates(network, loss, hyper, state, sample, tau)
    return (
        ReferenceState(
            t=state.t + tau,
            h=_add(state.h, tau, rates.h),  # eq:eulera
            z=_add(state.z, tau, rates.z),
            theta=_add(state.theta, tau, rates.theta),  # eq:eulera
            omega=_add(state.omega, tau, rates.omega),
            updates=state.updates + (sample.target is not None),
        ),
        report,
    )


def parallel_rates(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample, tau: float
) -> tuple[ReferenceState, ReferenceReport]:
    """The four right-hand sides at `state`: ḣ, ż, θ̇ and ω̇, in the fields of a state."""
    s, phi, eta, eta_z, beta = _hyper_at(hyper, state)
    h, z = _leaf(state.h), state.z
    theta = {name: _leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau)  # eq:hesa
    y = f_y(network, theta, sample.u, h)  # eq:netsplitc
    L = loss(y, sample.target) if sample.target is not None else None
    H = _inner(z, dh) if L is None else phi * L + _inner(z, dh)  # eq:hrestricted
    dH_dh = _gradient(H, h)
    dH_dtheta = _gradient(H, theta)
    dtheta = {n: -(beta(n) * state.omega[n]) for n in theta}  # eq:hesb
    dz = tree_map(lambda g, a: -s * g - eta_z * a, dH_dh, z)  # eq:hesc
    domega = {n: -s * dH_dtheta[n] - eta * state.omega[n] for n in theta}  # eq:hesd
    rates = ReferenceState(1.0, _detach(dh), dz, dtheta, domega)
    return rates, ReferenceReport(state.t, _detach(y), _detach(L), _detach(H))


def sequential_step(
    network: Network, loss: Loss, hyper: Hyper, state: ReferenceState, sample: Sample
) -> tuple[ReferenceState, ReferenceReport]:
    """State first, loss on the new state, then z, then ω from the new z, then θ from the new ω."""
    tau = _tau(hyper, state, sample)
    s, phi, eta, eta_z, beta = _hyper_at(hyper, state)
    h, z, omega = _leaf(state.h), state.z, state.omega
    theta = {name: _leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau)  # eq:hesa
    h1 = _leaf(_add(state.h, tau, _detach(dh)))  # eq:figliotop
    y = f_y(network, theta, sample.u, h1)
    L = loss(y, sample.target) if sample.target is not None else None
    dL_dh1 = _gradient(L, h1)
    dL_dtheta = _gradient(L, theta)
    dzf_dh = _gradient(_inner(z, dh), h)
    z1 = tree_map(  # eq:hesc, eq:figliobottom
        lambda a, l, j: (1 - tau * eta_z) * a - s * tau * (phi * l + j), z, dL_dh1, dzf_dh
    )
    dzf_dtheta = _gradient(_inner(z1, dh), theta)
    omega1 = {  # eq:hesd, eq:fanculo; the first term is ωh's, the second ωy's
        n: (1 - tau * eta) * omega[n] - s * tau * dzf_dtheta[n] - s * tau * phi * dL_dtheta[n] for n in theta
    }
    theta1 = {n: state.theta[n] - tau * (beta(n) * omega1[n]) for n in theta}  # eq:hesb, eq:fanculo2
    H = _inner(z, dh) if L is None else phi * L + _inner(z, dh)  # eq:hrestricted
    report = ReferenceReport(state.t, _detach(y), _detach(L), _detach(H))
    updates = state.updates + (sample.target is not None)
    return ReferenceState(state.t + tau, _detach(h1), z1, theta1, omega1, updates), report


def f_h(network: Network, theta: Weights, u: Any, h: Any, tau: float) -> Any:
    """ḣ = f_h(u, h, θh) (eq:netsplita); (−h + ĥ)/τ where the net returns the next state (eq:euleraa)."""
    if network.state is None:
        return ()
    result = functional_call(network, theta, (u, h, "state"))
    if network.transition == "rate":
        return result
    return tree_map(lambda a, b: (-a + b) / tau, h, result)


def f_y(network: Network, theta: Weights, u: Any, h: Any) -> Any:
    """Output y = f_y(u, h, θy) (eq:netsplitc)."""
    return functional_call(network, theta, (u, None if network.state is None else h, "output"))


def _h0(network: Network, u: Any) -> Any:
    return () if network.state is None else network.initial_state(u)


def _tau(hyper: Hyper, state: ReferenceState, sample: Sample) -> float:
    return sample.tau if sample.tau is not None else _value(hyper.tau, state.t)


def _hyper_at(hyper: Hyper, state: ReferenceState) -> tuple[int, float, float, float, Callable[[str], Any]]:
    t = state.t
    phi = _value(hyper.phi, t)
    if state.updates == 0 and hyper.phi_first is not None:
        phi = hyper.phi_first
    eta = _value(hyper.eta, t)
    eta_z = eta if hyper.eta_z is None else _value(hyper.eta_z, t)

    def beta(name: str) -> Any:
        if isinstance(hyper.beta, Mapping):
            return _value(next(b for pattern, b in hyper.beta.items() if fnmatchcase(name, pattern)), t)
        return _value(hyper.beta, t)

    return hyper.s, phi, eta, eta_z, beta


def _value(rate: Any, t: float) -> Any:
    return rate(t) if callable(rate) and not isinstance(rate, Tensor) else rate


def _leaf(tree: Any) -> Any:
    return tree_map(lambda x: x.detach().requires_grad_(), tree)


def _detach(tree: Any) -> Any:
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)


def _add(x: Any, tau: float, dx: Any) -> Any:
    return tree_map(lambda a, b: a + tau * b, x, dx)


def _inner(z: Any, dh: Any) -> Tensor:
    terms = [(a * b).sum() for a, b in zip(tree_leaves(z), tree_leaves(dh), strict=True)]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def _gradient(scalar: Tensor | None, tree: Any) -> Any:
    def gradient(x: Tensor) -> Tensor:
        if scalar is None or not scalar.requires_grad:
            return torch.zeros_like(x)
        return torch.autograd.grad(scalar, x, retain_graph=True, materialize_grads=True)[0]

    return tree_map(gradient, tree)
