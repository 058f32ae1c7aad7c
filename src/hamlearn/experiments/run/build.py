"""From a configuration to a stream, a network and a learner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from hamlearn import cells, streams
from hamlearn.errors import ConfigError
from hamlearn.experiments.run.config import Config
from hamlearn.experiments.run.keys import UNITS, keys_of, named_as, not_allowed, unknown
from hamlearn.experiments.run.tables import BROKERS, PARTS, RULES, SOURCES, WRAPPERS
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.streams import Stream, TensorSpec

LOSSES: dict[str, Callable[..., Any]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "cross_entropy": functional.cross_entropy,
}
REGRESSION = ("mse", "l1", "huber")
"""Losses of numbers, which are standardized with the inputs."""
CELLS: dict[str, Callable[[int, int], nn.Module]] = {
    "rnn": nn.RNNCell,
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
    "columnar_gru": cells.ColumnarGRU,
    "rtu": cells.RTU,
    "lru": cells.LRU,
}


def build_stream(config: Config, folder: Path = Path()) -> tuple[Stream, int | None]:
    """The stream, and the number of its classes if it has any. Paths are relative to `folder`."""
    section = config["stream"]
    around = {"kind", *WRAPPERS}
    for wrap, argument in WRAPPERS.values():
        around |= set(keys_of(wrap)) - {argument}
    own = {name: value for name, value in section.items() if name not in around}
    if "path" in own:
        own["path"] = folder / own["path"]
    if own.get("unit") in UNITS:
        own["unit"] = timedelta(**{own["unit"]: 1})
    with named_as("stream", section):
        stream = _source(section["kind"], own)
    # Classes that are found on the way have their places from the start.
    classes = own.get("classes") or getattr(stream, "classes", None)
    count = classes if isinstance(classes, int) or classes is None else len(classes)
    return _wrapped(stream, section, config["loss"]["kind"] in REGRESSION), count


def _source(kind: str, own: dict[str, Any]) -> Stream:
    if kind in BROKERS:
        # `timeout` is an argument of both.
        source = {name: own[name] for name in keys_of(BROKERS[kind]) if name in own}
        live = {name: own[name] for name in keys_of(streams.live) if name in own}
        return streams.live(BROKERS[kind](**source), **live)
    if not kind.startswith("river."):
        return SOURCES[kind](**own)
    from river import datasets

    from hamlearn.interop.river import from_river

    name = kind.removeprefix("river.")
    known = {n: made for n in datasets.__all__ if isinstance(made := getattr(datasets, n, None), type)}
    if name not in known:
        raise ConfigError(unknown(f"stream.kind = {kind!r}", name, list(known)))
    data = known[name]()
    if not getattr(data, "is_downloaded", True):
        raise ConfigError(
            f"stream.kind = {kind!r} is a data set that is not on this machine. Fetch it once: "
            f"python -c 'from river import datasets; datasets.{name}().download()'"
        )
    return from_river(data, **own)


def _wrapped(stream: Stream, section: Mapping[str, Any], regression: bool) -> Stream:
    for lead, (wrap, argument) in WRAPPERS.items():
        if section.get(lead, False) is False:
            continue
        if lead == "lags" and isinstance(stream.spec.target, TensorSpec) and len(stream.spec.target.shape) != 1:
            raise not_allowed(
                "stream.lags", section[lead], "Targets become inputs if they are numbers, not classes."
            )
        given = {name: section[name] for name in keys_of(wrap) if name in section}
        if argument is not None:
            given[argument] = section[lead]
        if lead == "standardize":
            # Predictions and scores come back in the unit of the data.
            given.setdefault("scale_target", regression)
        with named_as("stream", section, argument or "", lead):
            stream = wrap(stream, **given)
    return stream


def build_network(config: Config, stream: Any, classes: int | None) -> Network:
    """The network, sized by what the stream yields."""
    section, spec = config["network"], stream.spec
    inputs = _size(section["inputs"], _known_size(spec.u), "inputs")
    if section["outputs"] is None and spec.target is None and "target" not in config.get("stream", {"target": ""}):
        raise ConfigError(
            "stream.target is missing: it names the column that is learned. Give stream.target, or, if there is "
            "nothing to learn, say with network.outputs how many outputs the network has."
        )
    outputs = _size(section["outputs"], classes or _known_size(spec.target), "outputs")
    _require_loss(config["loss"]["kind"], spec.target, outputs)
    kind, hidden = section["kind"], section["hidden"]
    sizes = [] if kind == "linear" else hidden if isinstance(hidden, list) else [hidden]
    # Units that turn show two numbers each.
    shown = 2 * sizes[-1] if kind in ("rtu", "lru") else [inputs, *sizes][-1]
    readout = nn.Linear(shown, outputs)
    if section["zero_output"]:
        nn.init.zeros_(readout.weight)
        nn.init.zeros_(readout.bias)
    if kind not in CELLS:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([inputs, *sizes]):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return Network.feedforward(nn.Sequential(*layers, readout), role=section["role"])
    if section["role"] != "output":
        raise not_allowed("network.role", section["role"], f"The cell of kind {kind!r} is the state net already.")
    return Network.recurrent(CELLS[kind](inputs, sizes[0]), readout)


def _known_size(spec: Any) -> int | None:
    if isinstance(spec, TensorSpec) and len(spec.shape) == 1 and spec.shape[0] and spec.dtype.is_floating_point:
        return spec.shape[0]
    return None


def _size(given: int | None, known: int | None, name: str) -> int:
    if given is None and known is None:
        raise ConfigError(
            f"network.{name} is missing, and the stream cannot say it before its first sample. Give it."
        )
    if given is not None and known is not None and given != known:
        raise not_allowed(f"network.{name}", given, f"The stream has {known}. Leave network.{name} out.")
    return given or known or 0


def _require_loss(loss: str, target: Any, outputs: int) -> None:
    """Raise for a loss that would silently take classes for numbers, or numbers for classes."""
    if not isinstance(target, TensorSpec):
        return
    if not target.dtype.is_floating_point:
        if loss != "cross_entropy":
            raise not_allowed("loss.kind", loss, 'The targets are classes. Allowed is "cross_entropy".')
    elif loss == "cross_entropy" and outputs == 1:
        why = (
            'The target is one number. Allowed are "mse", "l1" and "huber"; or say in [stream] that the target '
            'names classes: classes = 3 finds up to 3 on the way, classes = ["a", "b"] lists them.'
        )
        raise not_allowed("loss.kind", loss, why)


def build_hyper(config: Config) -> Hyper:
    """The hyperparameters, in their own terms or in those of an optimizer of PyTorch."""
    section = {name: value for name, value in config["hyper"].items() if value is not None}
    make = RULES[section.pop("rule")] if "rule" in section else Hyper
    own = {name: section.pop(name) for name in keys_of(make) if name in section}
    with named_as("hyper", own):
        return replace(make(**own), **section)


def build_learner(config: Config, network: Network, **arguments: Any) -> Learner:
    """The learner; further arguments are given to it as they are."""
    section = config["learner"]
    own = {name: section[name] for name in keys_of(Learner) if name in section}
    with named_as("learner", section):
        for part, classes in PARTS.items():
            kind = classes[section[part]]
            own[part] = kind(**{name: section[name] for name in keys_of(kind)})
        return Learner(network, LOSSES[config["loss"]["kind"]], build_hyper(config), **own | arguments)
