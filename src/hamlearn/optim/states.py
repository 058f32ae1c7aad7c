"""States of optimizers as `hl.optim.HL` understands them: its own, and those of `torch.optim` by the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.numbers import fraction, nonnegative, positive_time, share, two_betas
from hamlearn.errors import CheckpointError, ConfigError

SETTINGS = {
    "sgd": ("lr", "momentum", "dampening", "weight_decay", "tau", "clock"),
    "adam": ("lr", "betas", "eps", "weight_decay", "tau", "clock"),
    "adamw": ("lr", "betas", "eps", "weight_decay", "tau", "clock"),
    "rmsprop": ("lr", "alpha", "eps", "weight_decay", "tau", "clock"),
}
"""What each rule is set by."""

THEIRS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}
"""What PyTorch calls the rules."""

_NAMES = {
    "sgd": {"omega": "momentum_buffer"},
    "adam": {"omega": "exp_avg", "v": "exp_avg_sq", "updates": "step"},
    "adamw": {"omega": "exp_avg", "v": "exp_avg_sq", "updates": "step"},
    "rmsprop": {"v": "square_avg", "updates": "step"},
}
"""Tensors that are kept of a weight, by HL's name and by PyTorch's."""

# Settings of PyTorch's optimizers that HL does not have: other steps, and how they are computed.
_OTHER_STEPS = ("maximize", "nesterov", "differentiable", "amsgrad", "centered")
_OTHER_WAYS = ("foreach", "fused", "capturable", "decoupled_weight_decay")


def check_group(group: Mapping[str, Any], rule: str) -> None:
    """Raise where a setting of a group of parameters cannot be."""
    if group.get("rule", rule) != rule:
        raise ConfigError(
            f"rule={group['rule']!r} is not that of the optimizer, {rule!r}: make another optimizer for these "
            "parameters"
        )
    for name in ("lr", "weight_decay"):
        nonnegative(name, group[name])
    if rule == "sgd":
        for name in ("momentum", "dampening"):
            if not fraction(group[name]):
                raise ConfigError(f"{name}={group[name]!r} must be a number between 0 and 1")
    else:
        if not nonnegative("eps", group["eps"]):
            raise ConfigError(f"eps={group['eps']!r} must be above 0: it bounds beta where gradients vanish")
        if rule == "rmsprop":
            share("alpha", group["alpha"])
        else:
            for place, value in enumerate(two_betas(group["betas"])):
                share(f"betas[{place}]", value)
    positive_time(group["tau"], ConfigError)
    if group["clock"] not in ("events", "continuous"):
        raise ConfigError(f"clock={group['clock']!r} must be 'events' or 'continuous'")
    for name in (*_OTHER_STEPS, *(() if rule == "sgd" else ("momentum", "dampening"))):
        if group.get(name):
            raise ConfigError(f"{name}={group[name]!r} is a step that hl.optim.HL does not make: leave it out")
    if group.get("decoupled_weight_decay", rule == "adamw") != (rule == "adamw"):
        raise ConfigError(
            f"decoupled_weight_decay={group['decoupled_weight_decay']!r} is not that of rule={rule!r}: 'adamw' "
            "decouples the decay of the weights, 'adam' does not"
        )


def understood(state_dict: dict[str, Any], defaults: Mapping[str, Any], params: list[Tensor]) -> dict[str, Any]:
    """A state as HL writes it; raises where it is of another kind, before anything is taken from it."""
    rule, groups = defaults["rule"], []
    if not (isinstance(state_dict, Mapping) and {"state", "param_groups"} <= state_dict.keys()):
        raise CheckpointError("this is not the state of an optimizer: give what `optimizer.state_dict()` returned")
    own = {name: defaults[name] for name in ("tau", "clock", "rule")}
    for group in state_dict["param_groups"]:
        missing = {*SETTINGS[rule]} - own.keys() - group.keys()
        if missing:
            raise CheckpointError(
                f"the state holds no {sorted(missing)}: it is another optimizer's. Take up that of HL by "
                f"rule={rule!r}, or of {THEIRS[rule]}"
            )
        check_group({**own, **group}, rule)
        settings = {k: v for k, v in group.items() if k not in (*_OTHER_STEPS, *_OTHER_WAYS)}
        if rule == "rmsprop":
            settings.pop("momentum", None)
        groups.append({**own, **settings})
    theirs = [index for group in groups for index in group["params"]]
    shapes = {index: weight.shape for index, weight in zip(theirs, params, strict=False)}
    states = {index: _kept(index, kept, shapes, rule) for index, kept in state_dict["state"].items()}
    return {**state_dict, "param_groups": groups, "state": states}


def _kept(index: Any, kept: Mapping[str, Any], shapes: Mapping[Any, torch.Size], rule: str) -> dict[str, Any]:
    """Tensors that are kept of one weight, under the names they have in HL or in PyTorch."""
    names = _NAMES[rule]
    ours = {theirs: name for name, theirs in names.items()} | {name: name for name in names}
    if not kept.keys() <= ours.keys():
        raise CheckpointError(
            f"the state of weight {index} holds {sorted(kept)}: it is another optimizer's. Take up that of HL by "
            f"rule={rule!r}, or of {THEIRS[rule]}"
        )
    found: dict[str, Any] = {ours[name]: value for name, value in kept.items() if value is not None}
    if rule != "sgd" and found and found.keys() != names.keys():
        raise CheckpointError(f"the state of weight {index} lacks {sorted(names.keys() - found.keys())}")
    for name, value in found.items():
        if name == "updates":
            found[name] = int(value)
            continue
        if value.shape != shapes.get(index, value.shape):
            raise CheckpointError(
                f"the state of weight {index} has shape {list(value.shape)}, the weight {list(shapes[index])}: "
                "build the model that it was saved from"
            )
        # A copy: both optimizers would continue to write to one tensor.
        found[name] = value.clone()
    return found
