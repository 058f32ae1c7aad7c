"""Which weights reach which numbers of the state within some steps, found out by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import devices_of
from hamlearn._base.torch_private import tree_map_only
from hamlearn.rates import Rates
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.system import System
from hamlearn.rules.transition import next_state

_TRIALS = 16
"""A unit such as ReLU shows no derivative at half of all points."""


def jacobians(flat: Tensor, h: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """∂h⁺/∂h and ∂h⁺/∂θ, a row for each number of h⁺, by one vector-Jacobian product for each."""
    rows = [vjp([flat], [along], [*h, *weights], keep=True) for along in torch.eye(len(flat)).to(flat)]
    J = torch.stack([torch.cat([part.reshape(-1) for part in row[: len(h)]]) for row in rows])
    return J, [torch.stack(parts) for parts in zip(*(row[len(h) :] for row in rows), strict=True)]


def reach(
    system: System, own: Sequence[int], h: list[Tensor], spec: trees.Spec, u: Any, rates: Rates, steps: int
) -> list[Tensor]:
    """For each weight: 1 at the numbers of the state that it reaches within `steps` steps, else 0.

    A derivative counts as a connection unless it is 0 at every point that is tried, as behind a mask. The
    points are the same for every learner.

    Args:
        system: The network and its weights.
        own: Which of the weights are asked for, by index.
        h: A state.
        spec: Its structure.
        u: An input.
        rates: Rates of a step.
        steps: n.
    """
    draw = torch.Generator().manual_seed(0)
    J, F = _connections(system, own, h, spec, u, rates, draw)
    found = F
    for _ in range(steps - 1):
        wider = [
            ((J @ part.flatten(1)).view_as(part) + first > 0).to(part)
            for part, first in zip(found, F, strict=True)
        ]
        if all(map(torch.equal, found, wider)):
            break
        found = wider
    return found


def _connections(
    system: System,
    own: Sequence[int],
    h: list[Tensor],
    spec: trees.Spec,
    u: Any,
    rates: Rates,
    draw: torch.Generator,
) -> tuple[Tensor, list[Tensor]]:
    """Where ∂h⁺/∂h and ∂h⁺/∂θ are not 0."""
    network, totals = system.network, list[Tensor]()
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    for _ in range(_TRIALS):
        tried = {
            name: _drawn(weight, draw, weight.detach(), 0.1).requires_grad_(weight.requires_grad)
            for name, weight in network.named_parameters()
        }
        # A net of time may do without some connections now and then, as at t = 0.
        now = rates._replace(t=10.0 * float(torch.rand((), generator=draw)))
        with torch.random.fork_rng(devices_of(system.theta)), system.slots.exchanged(tried | buffers):
            with torch.enable_grad():
                state = [_drawn(leaf, draw, 0.0, 1.0).requires_grad_() for leaf in h]
                point = tree_map_only(Tensor, lambda leaf: _drawn(leaf, draw, 0.0, 1.0), u)
                flat = torch.cat([leaf.reshape(-1) for leaf in next_state(network, state, spec, point, now)[0]])
            J, F = jacobians(flat, state, [tried[system.names[index]] for index in own])
        sizes = [part.abs() for part in (J, *F)]
        totals = [one + other for one, other in zip(totals, sizes, strict=True)] if totals else sizes
    J, *F = [(total != 0).to(total) for total in totals]
    return J, F


def _drawn(like: Tensor, draw: torch.Generator, mean: Tensor | float, spread: float) -> Tensor:
    """Normal numbers; whole ones, such as the indices of an embedding, stay."""
    if not like.is_floating_point():
        return like
    noise = torch.randn(like.shape, generator=draw, dtype=like.dtype).to(like.device)
    return mean + spread * noise
