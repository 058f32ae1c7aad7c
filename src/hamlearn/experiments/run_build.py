"""From a configuration to a stream, a network and a learner."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from hamlearn import streams
from hamlearn.credit import Cleared, Credit, Echo, Forward
from hamlearn.errors import ConfigError
from hamlearn.experiments.run_config import Config, unknown
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.streams import Stream, TensorSpec, signals
from hamlearn.streams.units import Unit

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
LOSSES: dict[str, Callable[..., Any]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "cross_entropy": functional.cross_entropy,
}
WRAPPERS = ("finite", "max_tau", "lags", "relative", "standardize", "hold")
_NOT_IN_FILES = ("dtype", "target_dtype", "clock")


def build_stream(config: Config, folder: Path) -> tuple[Stream, int | None]:
    """The stream, and the number of its classes where it knows them. Paths are relative to `folder`."""
    section = dict(config["stream"])
    kind = section.pop("kind")
    wrap = {name: section.pop(name) for name in WRAPPERS if name in section}
    make = _maker(kind)
    allowed = [name for name in inspect.signature(make).parameters if name not in _NOT_IN_FILES]
    for name in section:
        if name not in allowed:
            raise ConfigError(unknown(f"key stream.{name} of {kind}", name, ["kind", *allowed, *WRAPPERS]))
    if "path" in section:
        section["path"] = folder / section["path"]
    if isinstance(section.get("unit"), str):
        section["unit"] = _unit(section["unit"])
    try:
        stream = make(**section)
    except TypeError as error:
        raise ConfigError(
            f"[stream] of kind {kind!r} cannot be built: {error}. Allowed are {', '.join(allowed)}."
        ) from error
    classes = getattr(stream, "classes", None) or section.get("classes")
    return _wrapped(stream, wrap), None if classes is None else len(classes)


def _wrapped(stream: Stream, wrap: dict[str, Any]) -> Stream:
    for name, value in wrap.items():
        kind = {"finite": str, "relative": bool, "standardize": bool, "max_tau": float}.get(name, int)
        numeric = kind in (int, float) and isinstance(value, int) and not isinstance(value, bool)
        if not (numeric or (kind is not int and isinstance(value, kind))):
            raise ConfigError(
                f"stream.{name} = {value!r} is not allowed. Allowed is a value of type {kind.__name__}."
            )
    if "finite" in wrap:
        stream = streams.finite(stream, wrap["finite"])
    if "max_tau" in wrap:
        stream = streams.clip_tau(stream, wrap["max_tau"])
    if "lags" in wrap:
        stream = streams.autoregress(stream, wrap["lags"], wrap.get("relative", False))
    elif "relative" in wrap:
        raise ConfigError(
            "stream.relative is given without stream.lags, to which it belongs. Add lags = 1 or more."
        )
    if wrap.get("standardize"):
        stream = streams.standardize(stream)
    return streams.hold(stream, wrap["hold"]) if "hold" in wrap else stream


def _maker(kind: str) -> Callable[..., Stream]:
    if kind in ("csv", "live"):
        return streams.csv if kind == "csv" else streams.live
    family, _, name = kind.partition(".")
    if family == "signals" and name in signals.__all__:
        maker: Callable[..., Stream] = getattr(signals, name)
        return maker
    if family == "river":
        return _river(name)
    known = ["csv", "live", *(f"signals.{name}" for name in signals.__all__), "river.<name of a data set>"]
    raise ConfigError(f"stream.kind = {kind!r} is not known. Allowed are {', '.join(known)}.")


def _river(name: str) -> Callable[..., Stream]:
    try:
        from river import datasets

        from hamlearn.interop.river import from_river
    except ImportError as error:
        raise ConfigError(f"stream.kind = 'river.{name}' needs River. Install hamlearn[river].") from error
    if name not in datasets.__all__:
        raise ConfigError(unknown(f"data set stream.kind = 'river.{name}'", name, datasets.__all__))

    def make(unit: Unit = "auto") -> Stream:
        return from_river(getattr(datasets, name)(), unit)

    return make


def _unit(name: str) -> Unit:
    if name == "auto":
        return "auto"
    if name not in UNITS:
        raise ConfigError(
            f"stream.unit = {name!r} is not known. Allowed are a number of seconds, auto, {', '.join(UNITS)}."
        )
    return float(UNITS[name])


def build_network(config: Config, stream: Stream, classes: int | None) -> Network:
    """The network, sized by what the stream yields."""
    section, spec = config["network"], stream.spec
    inputs = section["inputs"] or _size(spec.u, "inputs")
    outputs = section["outputs"] or classes or _size(spec.target, "outputs")
    kind = section["kind"]
    hidden = section["hidden"] if isinstance(section["hidden"], list) else [section["hidden"]]
    hidden = [] if kind == "linear" else hidden
    readout = nn.Linear(hidden[-1] if hidden else inputs, outputs)
    if section["zero_output"]:
        nn.init.zeros_(readout.weight)
        nn.init.zeros_(readout.bias)
    if kind in ("linear", "mlp"):
        layers: list[nn.Module] = []
        for before, after in zip([inputs, *hidden], hidden, strict=False):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return Network.feedforward(nn.Sequential(*layers, readout), role=section["role"])
    if section["role"] != "output":
        raise ConfigError(
            f"network.role = 'state' is not allowed for kind {kind!r}, whose cell is the state net anyway."
        )
    cell = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](inputs, hidden[0])
    return Network.recurrent(cell, readout)


def _size(spec: Any, name: str) -> int:
    if isinstance(spec, TensorSpec) and len(spec.shape) == 1 and spec.shape[0] and spec.dtype.is_floating_point:
        return spec.shape[0]
    raise ConfigError(
        f"network.{name} is missing, and the stream cannot say it before its first sample. "
        f"Allowed is a whole number of at least 1: give network.{name}."
    )


def build_learner(config: Config, network: Network) -> Learner:
    """The learner."""
    section, hyper = config["learner"], config["hyper"]
    credit: Credit = Forward()
    if section["credit"] == "cleared":
        credit = Cleared()
    elif section["credit"] == "echo":
        credit = Echo(truncate=section["truncate"], every=section["every"])
    return Learner(
        network,
        LOSSES[config["loss"]["kind"]],
        Hyper(**hyper),
        order=section["order"],
        credit=credit,
        reset_h=section["reset_h"],
        on_nonfinite=section["on_nonfinite"],
    )
