"""The state's transition h⁺ = h + τ f_h (eq:eulera), for nets that return ḣ and nets that return ĥ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hamlearn import _tree
from hamlearn._scale import plus
from hamlearn.errors import SampleError
from hamlearn.networks import Network


def next_state(
    network: Network, h: list[Tensor], spec: _tree.Spec, u: Any, tau: float
) -> tuple[list[Tensor], _tree.Spec]:
    """h⁺ = h + τ f_h, which is ĥ itself where the state net returns the next state (eq:figliodi1)."""
    tree = None if network.memoryless else _tree.unflatten(h, spec)
    result, spec = _tree.flatten(network.state_net(u, tree))
    if not network.memoryless:
        check_same_shapes(result, h)
    if network.transition == "next":
        return result, spec
    return plus(h, result, tau), spec


def rate(network: Network, h: list[Tensor], result: list[Tensor], tau: float) -> list[Tensor]:
    """f_h from what the state net returned: ḣ as it is, or (−h + ĥ)/τ (eq:euleraa)."""
    check_same_shapes(result, h)
    if network.transition == "rate":
        return result
    return [(r - a) / tau for a, r in zip(h, result, strict=True)]


def end_points(h: list[Tensor]) -> list[Tensor]:
    """The parts of h⁺ as separate things to differentiate by, none of which is made of another.

    An LSTM's h, for example, is made of its c; as parts of the state they are independent.
    """
    if len(h) == 1 and h[0].requires_grad:
        return h
    if not all(leaf.requires_grad for leaf in h):
        return [leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in h]
    return [leaf.view_as(leaf) for leaf in h]


def check_same_shapes(result: Sequence[Tensor], h: Sequence[Tensor]) -> None:
    """Raise unless the state net's result has the state's structure and shapes."""
    if len(result) == 1 and len(h) == 1 and result[0].shape == h[0].shape:
        return
    if len(result) != len(h) or any(a.shape != b.shape for a, b in zip(result, h, strict=True)):
        raise SampleError(
            f"the state net returned {_tree.describe(list(result))} for a state h of {_tree.describe(list(h))}: "
            "both must have the same structure and shapes; check h0 and the batch size"
        )
