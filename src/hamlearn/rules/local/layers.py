"""Modules as layers: what they call, by what attributes, and who is called along with them."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from hamlearn.rules.local.residual import Residual
from hamlearn.rules.local.wiring import Merged


def flat(module: nn.Module) -> list[nn.Module] | None:
    """What a module calls one after the other, a module that is called twice at both places; `None`: not a chain.

    Example:
        >>> tanh = nn.Tanh()
        >>> flat(nn.Sequential(nn.Linear(2, 2), nn.Sequential(tanh, tanh)))
        [Linear(in_features=2, out_features=2, bias=True), Tanh(), Tanh()]
    """
    if isinstance(module, Merged):
        parts = [flat(node.module) for node in module.group] if module.straight else [None]
    elif type(module) is nn.Sequential:
        parts = [flat(child) for child in module]
    else:
        return None if list(module.children()) else [module]
    return None if any(part is None for part in parts) else [m for part in parts for m in part or ()]


def branch_of(module: nn.Module) -> tuple[nn.Module, bool]:
    """What a layer computes from its input, and whether it adds that to it.

    Example:
        >>> branch_of(Residual(nn.Tanh()))
        (Tanh(), True)
    """
    return (module.branch, True) if type(module) is Residual else (module, False)


def out_of_place(function: nn.Module) -> nn.Module:
    """The same function, leaving its input as it was."""
    # The stack differentiates by the value that a function in place would destroy.
    twin = copy.copy(function)
    if getattr(twin, "inplace", False):
        twin.inplace = False  # type: ignore[assignment]
    return twin


def module_hooks(module: nn.Module) -> tuple[Any, ...]:
    """All that may be called before or after a module, forward or backward."""
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
