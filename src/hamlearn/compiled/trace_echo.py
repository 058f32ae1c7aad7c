"""The two graphs of an echo: one token forward at frozen weights, and one token of the way back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.compiled.graphs import pure_graph
from hamlearn.compiled.trace import Inputs, Recorded, Stage, Variant, finite_mark
from hamlearn.echo import Echoed
from hamlearn.state import Sample

Specs = tuple[_tree.Spec, _tree.Spec, _tree.Spec]
Names = tuple[list[str], list[str]]


def token_by_token(order: Echoed) -> Echoed:
    """The same echo, with one graph per token."""
    order = copy.copy(order)
    order.joined = False
    return order


def record_forward(order: Echoed, inputs: Inputs, variant: Variant, specs: Specs, names: Names) -> Recorded:
    """(h, token) in; the next h, the state that the token met, y and the loss out."""
    described: dict[str, Any] = {}

    def step(*flat: Tensor) -> list[Tensor]:
        given = inputs.like(flat)
        stage = Stage(token_by_token(order), given, -1, *names)
        token, met = stage.run(lambda: _token(stage, given, variant, specs))
        y, described["y_spec"] = _tree.flatten(token.y)
        mark = variant.watch != "nothing"
        described.update(y_count=len(y), loss=token.loss is not None, coupling=False, mark=mark)
        carried = [new.detach().to(old.dtype) for new, old in zip(token.h_next, given.h, strict=True)]
        results = [*met, *y, *([] if token.loss is None else [token.loss])]
        if mark:
            results.append(finite_mark(token.h_next))
        return [tensor.detach() for tensor in (*carried, *stage.buffers, *results)]

    return Recorded(pure_graph(step, inputs.flat()), **described)


def record_backward(order: Echoed, inputs: Inputs, variant: Variant, specs: Specs, names: Names) -> Recorded:
    """(z, what flows back, ω, token) in; the same for the token before it out."""

    def step(*flat: Tensor) -> list[Tensor]:
        given = inputs.like(flat)
        stage = Stage(token_by_token(order), given, -1, *names)

        def back() -> Any:
            token, _ = _token(stage, given, variant, specs)
            omega = [tensor.clone() for tensor in given.omega]
            return stage.order.echo_token(token, given.z, given.flow, omega)  # type: ignore[attr-defined]

        z, flow, omega = stage.run(back)
        old = [*given.omega, *given.z, *given.flow]
        return [a.detach().to(b.dtype) for a, b in zip((*omega, *z, *flow), old, strict=True)]

    return Recorded(pure_graph(step, inputs.flat()), None, 0, loss=False, coupling=False, mark=False)


def _token(stage: Stage, given: Inputs, variant: Variant, specs: Specs) -> tuple[Any, list[Tensor]]:
    h_spec, u_spec, target_spec = specs
    network = stage.system.network
    u = _tree.unflatten(given.u, u_spec)
    target = _tree.unflatten(given.target, target_spec) if variant.targets else None
    # A learned first state is part of the graph of the token that meets it.
    with torch.enable_grad():
        start, _ = _tree.flatten(network.start(u))
        new = given.fresh[0]
        h = [torch.where(new, a, b) for a, b in zip(start, given.h, strict=True)]
    order: Any = stage.order
    token, _ = order.run_token(Sample(u, target), stage.rates, h, None, h_spec)
    return token, [leaf.detach() for leaf in h]
