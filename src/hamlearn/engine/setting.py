"""Whether a learner was put together in a way that works, and which order it then integrates by."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.credit import Credit
from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.integrators import Integrator
from hamlearn.network import Network
from hamlearn.rules import ORDERS
from hamlearn.rules.system import Order, System
from hamlearn.state.carry import Carry

ALLOWED: dict[str, Collection[str]] = {
    "reset_h": ("boundary", "sample"),
    "on_nonfinite": ("raise", "skip", "ignore"),
}


class Choices(NamedTuple):
    """How a learner integrates, fixed when it is made."""

    order: Literal["parallel", "sequential"] | type[Order]
    credit: Credit
    reset_h: Literal["boundary", "sample"]
    integrator: Integrator
    on_nonfinite: Literal["raise", "skip", "ignore"]


def check_arguments(
    network: object, hyper: object, choices: Choices, late: object, running_cost: object = None
) -> None:
    """Raise if an argument of a learner is not of its kind, or not one of those that are allowed."""
    order, credit, reset_h, integrator, on_nonfinite = choices
    if not isinstance(network, Network):
        raise ConfigError(f"network is a {type(network).__name__}: wrap it, as in hl.Network.feedforward(module)")
    if not isinstance(hyper, Hyper):
        raise ConfigError(f"hyper is a {type(hyper).__name__}: give hl.Hyper(...) or hl.Hyper.from_sgd(...)")
    if not isinstance(credit, Credit):
        raise ConfigError(f"credit={credit!r} must be hl.Forward(), hl.Cleared(), hl.Sensitivity() or hl.Echo()")
    if not isinstance(integrator, Integrator):
        raise ConfigError(f"integrator={integrator!r} must be hl.Euler(), hl.Heun() or hl.RK4()")
    if not (isinstance(order, type) and issubclass(order, Order)) and order not in ORDERS:
        names = ", ".join(map(repr, ORDERS))
        raise ConfigError(f"order={order!r} must be one of {names}, or a subclass of hl.Order")
    for name, value in (("reset_h", reset_h), ("on_nonfinite", on_nonfinite)):
        if value not in ALLOWED[name]:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, ALLOWED[name]))}")
    if isinstance(late, bool) or not isinstance(late, int) or late < 0:
        raise ConfigError(f"late={late!r} must be a whole number of samples, 0 or more")
    check_running_cost(running_cost)


def check_running_cost(running_cost: object) -> None:
    """Raise unless it is a function, or `None`."""
    if running_cost is not None and not callable(running_cost):
        raise ConfigError(f"running_cost={running_cost!r} must be a function of (u, h, dh, y, theta, t), or None")


def check_stream(stream: object) -> None:
    """Raise unless samples may be in it."""
    if not hasattr(stream, "__iter__") and not hasattr(stream, "__getitem__"):
        raise ConfigError(
            f"stream must be an iterable of hl.Sample, got {type(stream).__name__}: give hl.streams.from_any(data)"
        )


PAYS = 512
"""Samples from which on a compiled run is over sooner than an eager one, the recording of the step included."""


def chosen_engine(engine: str, stream: Any, max_steps: int | None) -> Literal["eager", "compiled"]:
    """The engine of this name; `"auto"` compiles if samples are at hand without waiting, and enough of them.

    They are in lists and in the streams of this library, but for live feeds.
    """
    if engine == "eager" or engine == "compiled":
        return engine  # type: ignore[return-value]
    if engine != "auto":
        raise ConfigError(f"engine={engine!r} must be 'eager', 'compiled' or 'auto'")
    at_hand = isinstance(stream, list | tuple) or (hasattr(stream, "block") and not getattr(stream, "live", False))
    length = len(stream) if isinstance(stream, list | tuple) else getattr(stream, "length", None)
    count = min((n for n in (length, max_steps) if n is not None), default=math.inf)
    return "compiled" if at_hand and count >= PAYS else "eager"


def check_steps(max_steps: Any) -> None:
    """Raise unless it is a number of samples to take at most, or `None`."""
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, Integral)):
        raise ConfigError(f"max_steps={max_steps!r} must be a whole number of samples, or None")


def check_chunk(chunk: object, on_gpu: bool) -> int:
    """How many samples a compiled engine takes at a time; on a GPU more, where a block costs the host more."""
    if chunk is None:
        return 1024 if on_gpu else 256
    if not isinstance(chunk, int) or chunk < 1:
        raise ConfigError(f"chunk={chunk!r} must be a whole number of samples, at least 1")
    return chunk


KEPT = ("h", "z", "omega", "theta", "v", "E")
"""What a scan can keep of every step."""


def check_keep(names: Any) -> tuple[str, ...]:
    """What a scan is to keep of every step."""
    unknown = [name for name in ([names] if isinstance(names, str) else names) if name not in KEPT]
    if unknown or isinstance(names, str):
        what = f"keep={names!r}" if isinstance(names, str) else f"keep has {unknown[0]!r}, which"
        raise ConfigError(f"{what} must be a sequence of names among {', '.join(map(repr, KEPT))}")
    return tuple(dict.fromkeys(names))


def no_sample(given: object) -> SampleError:
    """What a step says that was given something else."""
    return SampleError(
        f"step() takes an hl.Sample, not {type(given).__name__}: use hl.Sample(u, target), or make a stream of "
        "all the data, hl.streams.from_any(data)"
    )


def with_costates(carry: Carry, system: System, h: Any, z: Any, omega: Mapping[str, Tensor]) -> Carry:
    """The carry with what a user sets of it, each checked against what it stands for."""
    start, spec = (carry.h, carry.spec) if h is None else trees.flatten(trees.copied(h))
    if h is not None and (system.network.state is None or not all(isinstance(x, Tensor) for x in start)):
        raise ConfigError(
            f"h={trees.describe(h)} is not a state of this network: give one as initial_state(u) does"
        )
    costates = carry.z if h is None else [torch.zeros_like(leaf) for leaf in start]
    if z is not None:
        if not start:
            raise ConfigError("z was given, and there is no state yet that it belongs to: give h too")
        costates = trees.flatten_like(trees.copied(z), spec) or []
        if [x.shape for x in costates] != [x.shape for x in start]:
            expected = trees.describe(trees.unflatten(start, spec))
            raise ConfigError(
                f"z of {trees.describe(z)} does not fit the state of {expected}: give it that structure"
            )
    kept = dict(zip(system.names, carry.omega, strict=True))
    for name, value in omega.items():
        if name not in kept:
            raise ConfigError(f"omega names {name!r}, which is not a learnable weight; those are {list(kept)}")
        if value.shape != kept[name].shape:
            shape = tuple(kept[name].shape)
            raise ConfigError(f"omega of {name!r} has shape {tuple(value.shape)}, the weight has {shape}")
        kept[name] = value.detach().to(kept[name]).clone()
    return Carry(start, costates, list(kept.values()), spec, carry.v, carry.E, carry.memory)


def require_gradients() -> None:
    """Raise where nothing could be learned."""
    if torch.is_inference_mode_enabled():
        raise ConfigError(
            "in inference mode, within torch.inference_mode(), there are no gradients, and a step would learn "
            "nothing: leave it before the step; learner.predict() works there"
        )


def make_order(system: System, choices: Choices) -> Order:
    """The order of the updates that these choices ask for."""
    if isinstance(choices.order, type):
        return choices.order(system, choices.credit)
    return ORDERS[choices.order](system, choices.credit, choices.integrator, choices.reset_h)
