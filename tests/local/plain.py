"""The equations of local learning once more, by plain autograd, for modules that are shared, hooked, changing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Nodes = Sequence[tuple[str, nn.Module, tuple[str, ...]]]


class Plain:
    """Parallel order with s = −1 over all nodes, or over one node a step: H = φL + ⟨z, (−h + ĥ)/τ⟩."""

    def __init__(
        self, nodes: Nodes, loss: Callable[..., Tensor], *, eta: float, beta: float, one: bool = False
    ) -> None:
        self.nodes, self.loss, self.eta, self.beta, self.one = nodes, loss, eta, beta, one
        self.theta = list({p: None for _, module, _ in nodes for p in module.parameters() if p.requires_grad})
        self.omega = [torch.zeros_like(p, requires_grad=False) for p in self.theta]
        self.h: dict[str, Tensor] = {}
        self.z: dict[str, Tensor] = {}
        self.due: Any = None

    def start(self, h: dict[str, Tensor]) -> None:
        self.h = h
        self.z = {name: torch.zeros_like(x) for name, x in h.items()}

    def step(self, u: Tensor, target: Tensor) -> None:
        if not self.one:
            return self._tick(u, range(len(self.nodes)), target)
        for k in range(len(self.nodes)):
            # A sweep's loss is that of the state it led to; it enters in the step that sees that state.
            self._tick(u, [k], self.due)
            self.due = target if k == len(self.nodes) - 1 else None
        return None

    def _tick(self, u: Tensor, moving: Sequence[int], target: Any) -> None:
        leaves = {name: x.clone().requires_grad_() for name, x in self.h.items()}
        values = {"u": u} | leaves
        new = {}
        for k in moving:
            name, module, sources = self.nodes[k]
            new[name] = module(*(values[s] for s in sources))
        H = sum((self.z[n] * (x - leaves[n])).sum() for n, x in new.items())
        if target is not None:
            H = H + self.loss(leaves[self.nodes[-1][0]], target)
        parts = [*leaves.values(), *self.theta]
        grads = torch.autograd.grad(H, parts, allow_unused=True, materialize_grads=True)
        self.z = {n: (1 - self.eta) * self.z[n] + g for n, g in zip(leaves, grads, strict=False)}
        self.h = {n: new[n].detach().clone() if n in new else x for n, x in self.h.items()}
        with torch.no_grad():
            for p, w in zip(self.theta, self.omega, strict=True):
                p.sub_(w, alpha=self.beta)
        dtheta = grads[len(leaves) :]
        self.omega = [(1 - self.eta) * w + g for w, g in zip(self.omega, dtheta, strict=True)]
