"""Whether two learners compute the same function of their weights, so that one compiled step serves both."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor
from torch.nn.utils import parametrize

from hamlearn.adaptive import Adaptive
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.loops.guards import Guards


def how_members_differ(one: LearnerParts, other: LearnerParts) -> str | None:
    """Where two learners differ in settings, modules, shapes, or the plain values of modules and loss."""
    first, second = facts_of(one), facts_of(other)
    for label in {**first, **second}:
        a, b = first.get(label, "absent"), second.get(label, "absent")
        if type(a) is not type(b) or a != b:
            return f"{label} is {_shown(a)} here and {_shown(b)} there"
    return None


def facts_of(parts: LearnerParts) -> dict[str, Any]:
    """What a recorded step has built in, by what to call it."""
    network, hyper = parts.network, parts.hyper
    facts: dict[str, Any] = {f"its {name}": repr(value) for name, value in parts.choices._asdict().items()}
    facts |= {"its s": hyper.s, "its beta that adapts": isinstance(hyper.beta, Adaptive)}
    for name, module in network.named_modules():
        # A module with parametrizations (weight_norm, spectral_norm) has a class of its own.
        parametrized = parametrize.is_parametrized(module)
        facts[f"the network.{name}" if name else "the network"] = (
            type(module).__bases__[0] if parametrized else type(module)
        )
    loss, running_cost = parts.system.loss, parts.system.running_cost
    functions = {"the loss": loss} | ({} if running_cost is None else {"the running cost": running_cost})
    read = Guards(functions, {"the network": network}).values()
    for label, value in read.items():
        private = label.rpartition(".")[2].startswith("_")
        if not private and not isinstance(value, Tensor):
            # Functions that are defined again for each member are compared by their code.
            facts[label] = value.__code__ if isinstance(value, types.FunctionType) else value
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        facts[f"the network.{name}"] = tuple(tensor.shape), tensor.dtype, tensor.requires_grad
    for label, function in functions.items():
        plain: Any = function if isinstance(function, types.BuiltinFunctionType) else type(function)
        facts[label] = getattr(function, "__code__", plain)
    return facts


def _shown(value: Any) -> str:
    return f"a {value.__name__}" if isinstance(value, type) else repr(value)
