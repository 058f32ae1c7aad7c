"""The state's transition h⁺ = h + τ f_h (Eq. 6), for nets that return ḣ and nets that return ĥ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import Scale, plus
from hamlearn.errors import SampleError
from hamlearn.network import Network
from hamlearn.rates import Rates


def next_state(
    network: Network, h: list[Tensor], spec: trees.Spec, u: Any, rates: Rates
) -> tuple[list[Tensor], trees.Spec, list[Tensor]]:
    """h⁺ = h + τ f_h, which is ĥ itself where the state net returns the next state.

    Returns:
        h⁺, its structure, and what the state net returned.
    """
    if network.memoryless:
        leaves, spec = trees.flatten(network.state_net(u, None, rates.t, rates.tau))
        return leaves, spec, leaves
    result = as_state(network.state_net(u, trees.unflatten(h, spec), rates.t, rates.tau), h, spec)
    if network.transition == "next":
        return result, spec, result
    return plus(h, result, rates.tau), spec, result


def rate(network: Network, h: list[Tensor], result: list[Tensor], tau: Scale) -> list[Tensor]:
    """f_h from what the state net returned: ḣ as it is, or (−h + ĥ)/τ (Eq. 10)."""
    if network.transition == "rate":
        return result
    return [(r - a) / tau for a, r in zip(h, result, strict=True)]


def end_points(h: list[Tensor], *, apart: bool = False) -> list[Tensor]:
    """The parts of h⁺ as separate things to differentiate by, none of which is made of another.

    An LSTM's h, for example, is made of its c; as parts of the state they are independent. `apart`: what else is
    made of a part, as ḣ is, does not depend on the end point.
    """
    if len(h) == 1 and h[0].requires_grad and not apart:
        return h
    if not all(leaf.requires_grad for leaf in h):
        return [leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in h]
    return [leaf.view_as(leaf) for leaf in h]


def first_state(start: Any, spec: trees.Spec) -> list[Tensor]:
    """Leaves of a first state, in the order of the structure that the state has had so far."""
    leaves = trees.flatten_like(start, spec)
    if leaves is None:
        raise SampleError(
            f"the first state became {trees.describe(start)}, which has another structure than the state before: "
            "h0 must have the same one for every sample"
        )
    return leaves


def as_state(result: Any, h: Sequence[Tensor], spec: trees.Spec) -> list[Tensor]:
    """What the state net returned, leaf by leaf as the state has them; entries of dicts are paired by key.

    Raises:
        SampleError: If it has not the state's structure and shapes.
    """
    leaves = trees.flatten_like(result, spec)
    if leaves is None or any(a.shape != b.shape for a, b in zip(leaves, h, strict=True)):
        raise SampleError(
            f"the state net returned {trees.describe(result)} for a state h of "
            f"{trees.describe(trees.unflatten(list(h), spec))}: both must have the same structure and shapes; "
            "check h0 and the batch size"
        )
    return leaves
