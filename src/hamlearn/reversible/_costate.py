"""Backpropagation as Hamiltonian Learning: states are rebuilt and costates integrated along the way."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from hamlearn.errors import ConfigError
from hamlearn.reversible._chain import CHANGED, Chain
from hamlearn.reversible._errors import RebuildError
from hamlearn.reversible._omega import Omega
from hamlearn.reversible._replay import Replay, checksum

Output = tuple[Tensor, Tensor | None]


def run(chain: Chain, h0: Tensor, memory: str) -> Output:
    """h_N, and y where the chain has a readout, with the backward run that `memory` names."""
    inputs = [*chain.drive.tensors, *chain.weights.tensors]
    with chain.replay.own_random_numbers():
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in (h0, *inputs)):
            with torch.no_grad():
                _, h, y = chain.untaped(h0, remember=False)
            return h.to(h0.dtype), y
        if memory == "reversible":
            chain.weights.require_no_hooks()
            out = _Rebuilt.apply(chain, h0, *inputs)
            return out if isinstance(out, tuple) else (out, None)
        h_prev = h = chain.start(h0)
        ys: list[Tensor] = []
        if memory == "stored":
            h_prev, h, ys = chain.taped(h_prev, h, 0, chain.steps)
        else:
            span = math.isqrt(chain.steps - 1) + 1
            for first in range(0, chain.steps, span):
                last = min(first + span, chain.steps)
                h_prev, h, y_span = _checkpointed(chain, h_prev, h, first, last)
                ys += y_span
        return h.to(h0.dtype), torch.stack(ys) if ys else None


def _checkpointed(
    chain: Chain, h_prev: Tensor, h: Tensor, first: int, last: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    # To the end, so that the end can be compared.
    with set_checkpoint_early_stop(False):
        return checkpoint(
            _Span(chain, first, last),
            h_prev,
            h,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _Quietly(chain.replay)),
        )


class _Span:
    """Some steps that are run again in the backward run, and have to lead to the same bits."""

    def __init__(self, chain: Chain, first: int, last: int) -> None:
        self.chain, self.first, self.last = chain, first, last
        self.sums: Tensor | None = None

    def __call__(self, h_prev: Tensor, h: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        h_prev, h, ys = self.chain.taped(h_prev, h, self.first, self.last)
        sums = torch.stack([checksum(x) for x in (h_prev, h, *ys)])
        if self.sums is not None and not torch.equal(sums, self.sums):
            raise RebuildError(
                f"steps {self.first} to {self.last - 1} led to other bits when they were run again. {CHANGED}"
            )
        self.sums = sums
        return h_prev, h, ys


class _Quietly:
    """`replay.quietly()` that can be entered again, as every backward run on a retained graph does."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def __enter__(self) -> None:
        self.context = self.replay.quietly()
        self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)


class _Rebuilt(torch.autograd.Function):
    """h_N (and y) from h_0, u and θ; keeps the states h_{N-1} and h_N alone."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, h0: Tensor, *inputs: Tensor) -> Any:
        with torch.enable_grad():
            h, h_next, y = chain.untaped(h0, remember=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, h_next, *inputs)  # u and θ too: a change in place before the backward is an error
        ctx.chain = chain
        h_out = h_next.to(h0.dtype)
        return h_out if y is None else (h_out, y)

    @staticmethod
    def backward(ctx: Any, dL_dh: Tensor | None, dL_dy: Tensor | None = None) -> Any:
        if torch.is_grad_enabled():
            raise ConfigError(
                "create_graph=True asks for a graph of the backward run, which a reversible chain does not keep: "
                "second derivatives need memory='stored'."
            )
        h, h_next, *_ = ctx.saved_tensors
        ctx.chain.weights.require_no_hooks()
        with ctx.chain.replay.again():
            return None, *_echo(ctx.chain, h, h_next, dL_dh, dL_dy)


def _echo(
    chain: Chain, h: Tensor, h_next: Tensor, dL_dh: Tensor | None, dL_dy: Tensor | None
) -> list[Tensor | None]:
    """Run the steps in reverse order; returns the derivatives with respect to h_0, u and θ."""
    rule, drive = chain.rule, chain.drive.detached()
    omega = Omega(chain)
    z, z_next = torch.zeros_like(h), torch.zeros_like(h)
    if dL_dh is not None:
        z_next.add_(dL_dh)
    for k in reversed(range(chain.steps)):
        u, u_leaves = drive.at(k)
        if dL_dy is not None:
            with torch.enable_grad():
                y = chain.output(k, u, x := chain.leaf(h_next))
            if k == chain.steps - 1:
                chain.require_last(1, y)
            leaves = omega.leaves(chain.readout, y, x, u_leaves)
            dL_dx, *dL = rule.pullback(y, leaves, dL_dy[k])
            z_next = z_next if dL_dx is None else z_next.add_(dL_dx)
            omega.add(k, chain.readout, dL)
        with torch.enable_grad():
            v = chain.rate(k, u, x := chain.leaf(h))
        if k == chain.steps - 1:
            chain.require_last(0, v)
        leaves = omega.leaves(chain.field(k), v, x, u_leaves)
        increment = rule.increment(k, h, v.detach())
        h_prev = torch.sub(h_next, increment, out=increment)
        dH_dh, *dH = rule.pullback(v, leaves, z_next * rule.tau)
        z = z if dH_dh is None else z.add_(dH_dh)
        omega.add(k, chain.field(k), dH)
        h, h_next, z, z_next = h_prev, h, z_next, z
    if rule.grid is not None and not torch.equal(h, h_next):  # h_{-1} = h_0
        raise RebuildError(
            "the rebuilt states do not lead back to the start: a field gave other bits when it was evaluated "
            f"again. {CHANGED}"
        )
    return [(z + z_next).to(rule.shown), *omega.u.values, *omega.theta.values]
