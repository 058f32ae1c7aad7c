"""Sensitivities a second time: the whole matrix ∂h/∂θ, entry by entry, and what follows from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.fuzz import trees


def start(judge: Any, u: Any) -> dict[str, Tensor]:
    """∂h0/∂θ where a sequence begins."""
    return _by_theta(judge, judge.parts.h0(u))


def step(judge: Any, u: Any, target: Any, tau: float) -> tuple[Any, Tensor | None, Any]:
    """One step in the judge's order; y, the loss and H."""
    t, keep = judge.t, judge.credit[1]
    phi, theta = judge.phi(t), judge.learned()
    unit, keeps = judge.clock(t, tau)
    h = trees.leaf(judge.h)
    h1 = judge.after(u, h, tau)
    J = torch.cat([_rows(h1, leaf) for leaf in trees.leaves(h).values()], 1)
    F = _by_theta(judge, h1)
    E1 = {n: keep * J @ judge.E[n] + F[n] for n in theta}
    sequential = judge.order == "sequential"
    point = trees.leaf(h1 if sequential else judge.h)
    y = judge.f_y(u, point)
    L = None if target is None else judge.loss(y, target)
    dL = judge.grads(L, trees.leaves(point))
    z = {path: unit * phi * dL[path] for path in dL}
    flat = torch.cat([part.reshape(-1) for part in z.values()])
    full = judge.penalised(L)
    gained, E = judge.grads(full, theta), E1 if sequential else judge.E
    entered = {n: (flat @ E[n]).view_as(p) + unit * phi * gained[n] for n, p in theta.items()}
    H = 0.0 if full is None else phi * full.detach()
    old = {n: judge.velocity(n, t, judge.updates, p.data, judge.omega[n]) for n, p in theta.items()}
    judge.follow(entered, unit * phi, target is not None)
    judge.updates += target is not None
    for n, p in theta.items():
        judge.omega[n] = keeps(judge.eta(t)) * judge.omega[n] + entered[n]
        new = judge.velocity(n, t, judge.updates, p.data, judge.omega[n])
        p.data = p.data + unit * (new if sequential else old[n])
    judge.h, judge.z, judge.E = trees.cut(h1), trees.build(judge.h, z), E1
    return trees.cut(y), None if L is None else L.detach(), H


def _by_theta(judge: Any, tree: Any) -> dict[str, Tensor]:
    return {n: _rows(tree, p) for n, p in judge.learned().items()}


def _rows(tree: Any, by: Tensor) -> Tensor:
    """∂tree/∂by as a matrix."""
    flat = torch.cat([leaf.reshape(-1) for leaf in trees.leaves(tree).values()])
    if not flat.requires_grad:
        return flat.new_zeros(flat.numel(), by.numel())
    grads = [torch.autograd.grad(x, by, retain_graph=True, materialize_grads=True)[0].reshape(-1) for x in flat]
    return torch.stack(grads).detach()
