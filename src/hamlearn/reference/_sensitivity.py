"""Sensitivities as whole matrices: ∂h/∂θ for every entry of the state and every weight, carried forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.slots import Slots
from hamlearn._base.torch_private import tree_leaves, tree_map
from hamlearn.credit import Sensitivity
from hamlearn.hyper import Hyper
from hamlearn.network import Network
from hamlearn.reference._equations import (
    Loss,
    ReferenceReport,
    ReferenceState,
    RunningCost,
    Weights,
    add,
    decayed,
    detach,
    f_h,
    f_y,
    followed,
    gradient,
    hyper_at,
    leaf,
    left,
    nominal_of,
    penalty,
    running,
    tau_of,
)
from hamlearn.sample import Sample


def first_sensitivity(network: Network, theta: Weights, u: Any) -> Weights:
    """E(0) = ∂h0/∂θ: the identity for a learned h0, 0 for all else."""
    weights = leaf(theta)
    with Slots(network).exchanged(weights):
        h0 = network.start(u)
    return {name: _jacobian(_flat(h0), weights[name]) for name in theta}


def sensitivity_step(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    state: ReferenceState,
    sample: Sample,
    credit: Sensitivity,
    order: str,
    running_cost: RunningCost | None = None,
) -> tuple[ReferenceState, ReferenceReport]:
    """E⁺ = κ (∂h⁺/∂h) E + ∂h⁺/∂θ; sequential order pairs it with ∂L/∂h⁺, parallel order E with ∂L/∂h.

    A running cost R enters by (∂R/∂h)·E, and by ∂R/∂ḣ·(E⁺ − κE)/τ, since ḣ = (h⁺ − h)/τ.

    With `strict=False` each entry of h keeps what it owes to the weights of its own unit.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(hl.cells.ColumnarGRU(2, 3), torch.nn.Linear(3, 1))
        >>> sample, h = hl.Sample(torch.ones(1, 2), torch.ones(1, 1)), torch.zeros(1, 3)
        >>> state = reference.start(net)
        >>> E = {name: torch.zeros(3, weight.numel()) for name, weight in state.theta.items()}
        >>> state, credit = replace(state, h=h, z=h, E=E), hl.Sensitivity()
        >>> mse = torch.nn.functional.mse_loss
        >>> after, _ = sensitivity_step(net, mse, hl.Hyper(), state, sample, credit, "sequential")
        >>> after.E["output.weight"].any().item(), any(part.any().item() for part in after.E.values())
        (False, True)
    """
    tau = tau_of(hyper, state, sample)
    tau0 = nominal_of(hyper, state, tau)
    _, phi, eta, _, beta = hyper_at(hyper, state)
    h = leaf(state.h)
    theta = {name: leaf(weight) for name, weight in state.theta.items()}
    dh = f_h(network, theta, sample.u, h, tau, state.t)
    h1 = add(h, tau, dh)  # Eq. 13
    J = torch.cat([_jacobian(_flat(h1), x) for x in tree_leaves(h)], 1)
    F = {name: _jacobian(_flat(h1), theta[name]) for name in theta}
    E1 = {name: credit.keep * J @ state.E[name] + F[name] for name in theta}
    if not credit.strict:
        inner = [name for name in theta if name.startswith(("state.", "h0_"))]
        E1 |= {name: E1[name] * _own(network, state.h, name, theta[name]) for name in inner}
    point, E = (leaf(state.h), state.E) if order == "parallel" else (leaf(detach(h1)), E1)
    y = f_y(network, theta, sample.u, point)
    L = loss(y, sample.target) if sample.target is not None else None
    rate = leaf(detach(dh))
    R = running(running_cost, sample.u, point, rate, y, theta, state.t)
    dR_dh, p, dR_dtheta = gradient(R, point), gradient(R, rate), gradient(R, theta)
    learned, loss_term = L is not None, None if L is None else L + penalty(hyper, theta)
    dL_dh, dL_dtheta = gradient(L, point), gradient(loss_term, theta)
    z = tree_map(lambda l, r: tau0 * (phi * l + r), dL_dh, dR_dh)
    keep = left(eta, tau0, tau)
    along = {n: _flat(z) @ E[n] + tau0 / tau * _flat(p) @ (E1[n] - credit.keep * state.E[n]) for n in theta}
    entered = {n: along[n].reshape(theta[n].shape) + tau0 * (phi * dL_dtheta[n] + dR_dtheta[n]) for n in theta}
    omega = {n: keep * state.omega[n] + entered[n] for n in theta}
    v, k = followed(hyper, state, entered, tau0 * phi, learned), state.updates + learned
    moving = (state.omega, state.v, state.updates) if order == "parallel" else (omega, v, k)
    rest = {n: decayed(hyper, tau0, n, w, state.t) for n, w in state.theta.items()}
    theta1 = {n: rest[n] - tau0 * (beta(n, *moving[1:]) * moving[0][n]) for n in theta}  # Eq. E⋆2
    H = torch.zeros(()) if loss_term is None else phi * loss_term
    H = H if R is None else H + R
    report = ReferenceReport(state.t, detach(y), detach(L), detach(H))
    after = replace(state, t=state.t + tau, h=detach(h1), z=z, theta=theta1, omega=omega, updates=k, v=v, E=E1)
    return after, report


def _flat(tree: Any) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tree_leaves(tree)])


def _jacobian(of: Tensor, by: Tensor) -> Tensor:
    """∂of/∂by as a matrix."""
    if not of.requires_grad:
        return of.new_zeros(of.numel(), by.numel())
    rows = [torch.autograd.grad(x, by, retain_graph=True, materialize_grads=True)[0].reshape(-1) for x in of]
    return torch.stack(rows).detach()


def _own(network: Network, h: Any, name: str, weight: Tensor) -> Tensor:
    """1 where an entry of h and an entry of the weight belong to the same unit."""
    cell: Any = network.state
    units = cell.hidden_size if isinstance(cell, nn.RNNCellBase) else cell.units
    of_h = torch.cat([torch.arange(units).expand(x.shape).reshape(-1) for x in tree_leaves(h)])
    axis = -1 if name.startswith("h0_") else 0
    shape = [1] * weight.dim()
    shape[axis] = -1
    of_weight = (torch.arange(weight.shape[axis]) % units).reshape(shape).expand(weight.shape).reshape(-1)
    return (of_h[:, None] == of_weight[None]).to(weight.dtype)
