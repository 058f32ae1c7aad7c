"""The two graphs of an echo: one token forward at frozen weights, and one token of the way back."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from hamlearn._base import trees
from hamlearn.engine.recorded.trace import Inputs, Recorded, Stage, Variant, floating, mark
from hamlearn.loops import UnsupportedError
from hamlearn.loops.index_checks import counted
from hamlearn.loops.recording import pure_graph
from hamlearn.rules.echo import Echoed
from hamlearn.rules.transition import first_state
from hamlearn.sample import Sample

Specs = tuple[trees.Spec, trees.Spec, trees.Spec]
Names = tuple[list[str], list[str]]


def token_by_token(order: Echoed) -> Echoed:
    """The same echo, with one graph per token."""
    order = copy.copy(order)
    order.joined = False
    order.again = _Never()  # type: ignore[assignment]
    return order


class _Never:
    """Stands in for what lets a token be run again, which a recorded one never is."""

    def met(self) -> tuple[list[Tensor], list[Tensor]]:
        return [], []

    def on_copies(self, buffers: list[Tensor]) -> Any:
        return nullcontext()

    def drawn(self, before: list[Tensor]) -> list[Tensor]:
        return []


def record_forward(order: Echoed, inputs: Inputs, variant: Variant, specs: Specs, names: Names) -> Recorded:
    """(h, token) in; the next h, the state that the token met, y and the loss out."""
    described: dict[str, Any] = {}

    def step(*flat: Tensor) -> list[Tensor]:
        given = inputs.like(flat)
        stage = Stage(token_by_token(order), given, -1, *names)
        with counted() as faults:
            token, met = stage.run(lambda: _token(stage, given, variant, specs))
        y, described["y_spec"] = trees.flatten(token.y)
        watched = [] if variant.watch == "nothing" else [*token.h_next, *floating(stage.buffers)]
        marked = bool(watched or faults)
        described.update(y_count=len(y), loss=token.loss is not None, coupling=False, mark=marked)
        described["carried"] = {"h": len(token.h_next)}
        carried = [new.detach().to(old.dtype) for new, old in zip(token.h_next, given.h, strict=True)]
        results = [*met, *y, *([] if token.loss is None else [token.loss])]
        if marked:
            results.append(mark(watched, faults))
        return [tensor.detach() for tensor in (*carried, *stage.buffers, *results)]

    graph = pure_graph(step, inputs.flat())
    _refuse_changing_buffers(graph, inputs, names[0])
    inputs = inputs.emptied()
    return Recorded(graph, step, **described)


def _refuse_changing_buffers(graph: fx.GraphModule, inputs: Inputs, names: list[str]) -> None:
    """Raise where a token changes a buffer that is computed with: on the way back it would be another one."""
    nodes = list(graph.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    first = sum(map(len, (inputs.theta, inputs.omega, inputs.h, inputs.z)))
    returned = list(nodes[-1].args[0])
    left = returned[len(inputs.h) : len(inputs.h) + len(names)]
    results = {*returned[: len(inputs.h)], *returned[len(inputs.h) + len(names) :]}
    for name, before, after in zip(names, given[first:], left, strict=False):
        if after is before:
            continue
        reached, waiting = set(), [before]
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += node.users
        if reached & results:
            raise UnsupportedError(f"its buffer {name!r} changes with every token and enters what is computed")


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

    graph = pure_graph(step, inputs.flat())
    carried = {"ω": len(inputs.omega), "z": len(inputs.z), "the passed-on costate": len(inputs.flow)}
    inputs = inputs.emptied()
    return Recorded(graph, step, None, 0, loss=False, coupling=False, mark=False, carried=carried)


def _token(stage: Stage, given: Inputs, variant: Variant, specs: Specs) -> tuple[Any, list[Tensor]]:
    h_spec, u_spec, target_spec = specs
    network = stage.system.network
    u = trees.unflatten(given.u, u_spec)
    target = trees.unflatten(given.target, target_spec) if variant.targets else None
    # A learned first state is part of the graph of the token that meets it.
    with torch.enable_grad():
        start = first_state(network.start(u), h_spec)
        new = given.fresh[0]
        h = [torch.where(new, a, b) for a, b in zip(start, given.h, strict=True)]
    order: Any = stage.order
    token, _ = order.run_token(Sample(u, target), stage.rates, h, None, h_spec)
    return token, [leaf.detach() for leaf in h]
