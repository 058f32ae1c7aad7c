"""The echo, token by token: the paper's equations of BPTT as they stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hamlearn._base.torch_private import tree_map
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
    hyper_at,
    inner,
    leaf,
    left,
    nominal_of,
    running,
    tau_of,
)
from hamlearn.sample import Sample


def echo_sequence(
    network: Network,
    loss: Loss,
    hyper: Hyper,
    state: ReferenceState,
    samples: list[Sample],
    truncate: int | None = None,
    dissipate: str = "sequence",
    running_cost: RunningCost | None = None,
) -> tuple[ReferenceState, list[ReferenceReport]]:
    """Run tokens forward with frozen weights, let the last `truncate` of them echo, move the weights once.

    For k = n−1 … n−r: z ← τφ ∂L_k/∂h_{k+1} + z·∂h_{k+2}/∂h_{k+1} − τη_z z; ωh ← ωh + z·∂h_{k+1}/∂θh;
    ωy ← ωy + τφ ∂L_k/∂θy. Each net is evaluated again where a derivative of it is needed. On the clock of events
    the transitions are those of the true τ, τ0φ takes the place of τφ, and −τη_z z becomes what z loses over the
    gap, ((1 − τ0η_z)^(τ/τ0) − 1) z; a sequence is one event, for `dissipate="sequence"`, for v and for θ. The
    penalty of the weights enters once, with the last token's gain, and v follows what enters per unit of it. A
    running cost R of each token enters as its loss does, with gain τ0; it also reaches h and θ through ḣ.

    Example:
        >>> import torch, hamlearn as hl
        >>> from hamlearn import reference
        >>> net = hl.Network.recurrent(torch.nn.RNNCell(2, 3), torch.nn.Linear(3, 1))
        >>> sample = hl.Sample(torch.ones(1, 2), torch.ones(1, 1))
        >>> mse, h = torch.nn.functional.mse_loss, torch.zeros(1, 3)
        >>> state = replace(reference.start(net), h=h, z=h)
        >>> after, reports = echo_sequence(net, mse, hl.Hyper(), state, [sample] * 4)
        >>> after.t, len(reports), after.updates
        (4.0, 4, 1)
    """
    theta = state.theta
    h, t, reports = [state.h], [state.t], []
    for sample in samples:
        now = replace(state, t=t[-1])
        tau = tau_of(hyper, now, sample)
        dh = f_h(network, theta, sample.u, h[-1], tau, t[-1])
        h.append(detach(add(h[-1], tau, dh)))  # Eq. 6
        y = f_y(network, theta, sample.u, h[-1])
        L = loss(y, sample.target) if sample.target is not None else None
        phi = hyper_at(hyper, now)[1]
        R = running(running_cost, sample.u, h[-1], detach(dh), y, theta, t[-1])
        H = torch.zeros(()) if L is None else phi * L
        H = H if R is None else H + R
        reports.append(ReferenceReport(t[-1], detach(y), detach(L), detach(H)))
        t.append(t[-1] + tau)

    def transition(k: int, weights: Any, h_k: Any) -> Any:
        """h_{k+1} as a function of the weights and of h_k."""
        tau = tau_of(hyper, replace(state, t=t[k]), samples[k])
        return add(h_k, tau, rate(k, weights, h_k))

    def rate(k: int, weights: Any, h_k: Any) -> Any:
        """f_h of token k as a function of the weights and of h_k."""
        tau = tau_of(hyper, replace(state, t=t[k]), samples[k])
        return f_h(network, weights, samples[k].u, h_k, tau, t[k])

    omega, entered = dict(state.omega), {name: torch.zeros_like(weight) for name, weight in theta.items()}
    n, last = len(samples), len(samples) - 1
    z = p = tree_map(torch.zeros_like, h[0])  # p: τ0 ∂R/∂ḣ of the token after
    for k in range(last, max(n - (truncate or n), 0) - 1, -1):
        now = replace(state, t=t[k])
        tau = tau_of(hyper, now, samples[k])
        tau0 = nominal_of(hyper, now, tau)
        _, phi, eta, eta_z, _ = hyper_at(hyper, now)
        loss_z = 1 - left(eta_z, tau0, tau)
        weights, h1 = leaf(theta), leaf(h[k + 1])
        target = samples[k].target
        y, dh = f_y(network, weights, samples[k].u, h1), leaf(detach(rate(k, theta, h[k])))
        L = loss(y, target) if target is not None else None
        R = running(running_cost, samples[k].u, h1, dh, y, weights, t[k])
        dL_dh1, dL_dtheta = gradient(L, h1), gradient(L, weights)
        dR_dh1, dR_dtheta = gradient(R, h1), gradient(R, weights)
        back = tree_map(torch.zeros_like, z)
        if k < last:
            point = leaf(h[k + 1])
            back = gradient(inner(z, transition(k + 1, theta, point)) + inner(p, rate(k + 1, theta, point)), point)
        z = tree_map(  # BPTT: z
            lambda l, r, b, a: tau0 * (phi * l + r) + b - loss_z * a,  # noqa: B023
            *(dL_dh1, dR_dh1, back, z),
        )
        p = tree_map(lambda g: tau0 * g, gradient(R, dh))  # noqa: B023
        dz_dtheta = gradient(inner(z, transition(k, weights, h[k])) + inner(p, rate(k, weights, h[k])), weights)
        decay = 1.0
        if dissipate == "token":
            decay = left(eta, tau0, tau)
        elif k == last:
            decay = 1 - tau0 * eta
        own = {name: phi * dL_dtheta[name] + dR_dtheta[name] for name in theta}
        gained = {name: dz_dtheta[name] + tau0 * own[name] for name in theta}  # ωh's and ωy's
        omega = {name: decay * omega[name] + gained[name] for name in theta}  # BPTT: ω
        entered = {name: entered[name] + gained[name] for name in theta}
    now = replace(state, t=t[last])
    tau0 = nominal_of(hyper, now, tau_of(hyper, now, samples[last]))
    _, phi, _, _, beta = hyper_at(hyper, now)
    learned = any(sample.target is not None for sample in samples[-(truncate or n) :])
    for name in theta if learned else ():
        omega[name] = omega[name] + tau0 * phi * hyper.weight_decay * theta[name]
        entered[name] = entered[name] + tau0 * phi * hyper.weight_decay * theta[name]
    v, k = followed(hyper, state, entered, tau0 * phi, learned), state.updates + learned
    rest = {name: decayed(hyper, tau0, name, theta[name], now.t) for name in theta}
    moved = {name: rest[name] - tau0 * (beta(name, v, k) * omega[name]) for name in theta}  # Eq. E⋆2
    zeros = tree_map(torch.zeros_like, h[-1])
    return ReferenceState(t[-1], h[-1], zeros, moved, omega, k, v), reports
