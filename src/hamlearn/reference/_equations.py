"""What the orders share: f_h, f_y, the hyper-parameters at an instant, and derivatives leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.slots import Slots
from hamlearn._base.torch_private import tree_leaves, tree_map
from hamlearn.adaptive import Adaptive
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.sample import Sample

Weights = dict[str, Tensor]
Loss = Callable[[Any, Any], Tensor]
RunningCost = Callable[..., Tensor]
"""R(u, h, dh, y, theta, t)."""
Beta = Callable[[str, Weights, int], Any]


@dataclass(frozen=True)
class ReferenceState:
    """All that is carried from step to step: t, h, z, θ, ω, how many updates a loss has entered, v, and E.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> state = reference.start(net)
        >>> state.t, sorted(state.omega) == sorted(state.theta), state.updates
        (0.0, True, 0)
    """

    t: float
    h: Any
    z: Any
    theta: Weights
    omega: Weights
    updates: int = 0
    v: Weights = field(default_factory=dict)
    E: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceReport:
    """Output, loss and Hamiltonian of one step.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> samples = [hl.Sample(torch.ones(1, 2), torch.ones(1, 1))]
        >>> ((state, report),) = reference.run(net, torch.nn.functional.mse_loss, hl.Hyper(), samples)
        >>> report.t, report.y.shape, bool(report.hamiltonian == report.loss)
        (0.0, torch.Size([1, 1]), True)
    """

    t: float
    y: Any
    loss: Tensor | None
    hamiltonian: Tensor


def start(network: Network) -> ReferenceState:
    """Zero costates, weights as the network has them; h is set by the first sample.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> all(not costate.any() for costate in reference.start(net).omega.values())
        True
    """
    theta = {n: p.detach().clone() for n, p in network.named_parameters() if p.requires_grad}
    zeros = {n: torch.zeros_like(p) for n, p in theta.items()}
    return ReferenceState(0.0, (), (), theta, zeros, v=zeros)


def f_h(network: Network, theta: Weights, u: Any, h: Any, tau: float, t: float = 0.0) -> Any:
    """ḣ = f_h(u, h, θh) (Eq. 3); (−h + ĥ)/τ where the net returns the next state (Eq. 10).

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> u, h = torch.ones(1, 2), torch.zeros(1, 3)
        >>> dh = reference.f_h(net, dict(net.named_parameters()), u, h, tau=0.5)
        >>> torch.equal(h + 0.5 * dh, net.state(u, h))
        True
    """
    if network.state is None:
        return ()
    with Slots(network).exchanged(theta):
        result = network.state_net(u, h, t, tau)
    if network.transition == "rate":
        return tree_map(lambda a, b: b, h, result)
    return tree_map(lambda a, b: (-a + b) / tau, h, result)


def f_y(network: Network, theta: Weights, u: Any, h: Any) -> Any:
    """Output y = f_y(u, h, θy) (Eq. 4).

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> h = torch.ones(1, 3)
        >>> y = reference.f_y(net, dict(net.named_parameters()), torch.ones(1, 2), h)
        >>> torch.equal(y, net.output_net(torch.ones(1, 2), h))
        True
    """
    with Slots(network).exchanged(theta):
        return network.output_net(u, None if network.state is None else h)


def h0_for(network: Network, theta: Weights, u: Any) -> Any:
    """The first state, at the present weights where it is learned; an empty tree where there is no state net."""
    if network.state is None:
        return ()
    with Slots(network).exchanged(theta):
        return network.initial_state(u)


def tau_of(hyper: Hyper, state: ReferenceState, sample: Sample) -> float:
    """Time step of a sample."""
    return sample.tau if sample.tau is not None else _value(hyper.tau, state.t)


def nominal_of(hyper: Hyper, state: ReferenceState, tau: float) -> float:
    """τ0: the nominal step on the clock of events, τ itself on the continuous one."""
    return tau if hyper.clock == "continuous" else _value(hyper.tau, state.t)


def left(eta: float, tau0: float, tau: float) -> float:
    """What a costate keeps over τ: 1 − τη where τ is τ0, else (1 − τ0η)^(τ/τ0)."""
    return 1 - tau * eta if tau == tau0 else (1 - tau0 * eta) ** (tau / tau0)


def hyper_at(hyper: Hyper, state: ReferenceState) -> tuple[int, float, float, float, Beta]:
    """s, φ, η, η_z at the state's time, and β as a function of the parameter's name, of v, and of the update k."""
    t = state.t
    phi = _value(hyper.phi, t)
    if state.updates == 0 and hyper.phi_first is not None:
        phi = hyper.phi_first
    eta = _value(hyper.eta, t)
    eta_z = eta if hyper.eta_z is None else _value(hyper.eta_z, t)

    def beta(name: str, v: Weights, k: int) -> Any:
        rule = hyper.beta
        if not isinstance(rule, Adaptive):
            return _of(rule, name, t)
        scale = _of(rule.scale, name, t)
        if k < 1:
            return torch.zeros_like(v[name])  # v has followed nothing yet
        if rule.momentum is None:
            return scale / (v[name].sqrt() + rule.eps)
        return scale / (1 - rule.momentum**k) / ((v[name] / (1 - rule.keep**k)).sqrt() + rule.eps)

    return hyper.s, phi, eta, eta_z, beta


def decayed(hyper: Hyper, tau: float, name: str, theta: Tensor, t: float) -> Tensor:
    """θ − τ·scale·shrink·θ: what a weight dissipates to by itself."""
    rule = hyper.beta
    return theta - tau * _of(rule.scale, name, t) * rule.shrink * theta if isinstance(rule, Adaptive) else theta


def followed(hyper: Hyper, state: ReferenceState, entered: Weights, gain: float, learned: bool) -> Weights:
    """v⁺ = keep·v + (1 − keep)·g², with g = entered/gain; v where no loss enters."""
    rule = hyper.beta
    if not isinstance(rule, Adaptive) or not learned or not gain:
        return state.v
    return {n: rule.keep * v + (1 - rule.keep) * (entered[n] / gain) ** 2 for n, v in state.v.items()}


def penalty(hyper: Hyper, theta: Weights) -> Tensor:
    """½λ|θ|², which is added to the loss."""
    return 0.5 * hyper.weight_decay * torch.stack([weight.square().sum() for weight in theta.values()]).sum()


def running(cost: RunningCost | None, u: Any, h: Any, dh: Any, y: Any, theta: Weights, t: float) -> Tensor | None:
    """R, the part of H that needs no target; `None` where there is none. A net without state has no h and no ḣ."""
    if cost is None:
        return None
    stateless = isinstance(h, tuple) and not h
    time = torch.tensor(t, dtype=torch.float64)
    return cost(u, None if stateless else h, None if stateless else dh, y, theta, time)


def _of(rates: Any, name: str, t: float) -> Any:
    if isinstance(rates, Mapping):
        return _value(next(rate for pattern, rate in rates.items() if fnmatchcase(name, pattern)), t)
    return _value(rates, t)


def _value(rate: Any, t: float) -> Any:
    return rate(t) if callable(rate) and not isinstance(rate, Tensor) else rate


def leaf(tree: Any) -> Any:
    """The tree as new things to differentiate by."""
    return tree_map(lambda x: x.detach().requires_grad_(), tree)


def detach(tree: Any) -> Any:
    """The tree, cut from its graph."""
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)


def add(x: Any, tau: float, dx: Any) -> Any:
    """Sum x + τ·ẋ (Eq. 6)."""
    return tree_map(lambda a, b: a + tau * b, x, dx)


def inner(z: Any, dh: Any) -> Tensor:
    """⟨z, f_h⟩."""
    terms = [(a * b).sum() for a, b in zip(tree_leaves(z), tree_leaves(dh), strict=True)]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def gradient(scalar: Tensor | None, tree: Any) -> Any:
    """∂scalar/∂leaf for each leaf; zeros where there is no scalar or no dependence."""

    def one(x: Tensor) -> Tensor:
        if scalar is None or not scalar.requires_grad:
            return torch.zeros_like(x)
        gradient = torch.autograd.grad(scalar, x, retain_graph=True, materialize_grads=True)[0]
        return gradient.to_dense() if gradient.is_sparse else gradient

    return tree_map(one, tree)
