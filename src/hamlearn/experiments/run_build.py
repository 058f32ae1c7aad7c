"""From a configuration to a stream, a network and a learner."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from hamlearn import cells, streams
from hamlearn.credit import Cleared, Credit, Echo, Forward, Sensitivity
from hamlearn.errors import ConfigError
from hamlearn.experiments.run_config import MOST_WEIGHTS, Config
from hamlearn.experiments.run_keys import shown, unknown
from hamlearn.experiments.run_streams import BROKERS, LIVE, UNITS, WRAPPERS
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.streams import Stream, TensorSpec, signals
from hamlearn.streams.units import Unit

LOSSES: dict[str, Callable[..., Any]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "cross_entropy": functional.cross_entropy,
}


def build_stream(config: Config, folder: Path) -> tuple[Stream, int | None]:
    """The stream, and the number of its classes where it knows them. Paths are relative to `folder`."""
    section = dict(config["stream"])
    kind = section.pop("kind")
    wrap = {name: section.pop(name) for name in WRAPPERS if name in section}
    if "path" in section:
        section["path"] = folder / section["path"]
    if section.get("unit") in UNITS:
        section["unit"] = float(UNITS[section["unit"]])
    stream = _maker(kind)(**section)
    # Classes that are found on the way have their places from the start.
    classes = section.get("classes") or getattr(stream, "classes", None)
    count = classes if isinstance(classes, int) or classes is None else len(classes)
    return _wrapped(stream, wrap), count


def _wrapped(stream: Stream, wrap: dict[str, Any]) -> Stream:
    if "finite" in wrap:
        stream = streams.finite(stream, wrap["finite"])
    if "max_tau" in wrap:
        stream = streams.clip_tau(stream, wrap["max_tau"])
    if "lags" in wrap:
        target = stream.spec.target
        if isinstance(target, TensorSpec) and len(target.shape) != 1:
            raise ConfigError(
                f"stream.lags = {wrap['lags']} is not allowed: past targets become inputs where they are "
                "numbers, and these are classes. Leave stream.lags out."
            )
        stream = streams.autoregress(stream, wrap["lags"], wrap.get("relative", False))
    if wrap.get("standardize"):
        stream = streams.standardize(stream)
    return streams.hold(stream, wrap["hold"]) if "hold" in wrap else stream


def _maker(kind: str) -> Callable[..., Stream]:
    family, _, name = kind.partition(".")
    if family == "river":
        return _river(name)
    if kind in BROKERS:
        return lambda **section: _fed(getattr(streams, kind), section)
    maker: Callable[..., Stream] = getattr(signals, name) if family == "signals" else getattr(streams, kind)
    return maker


def _fed(source: Callable[..., Any], section: dict[str, Any]) -> Stream:
    """A live feed of a broker's messages; how long to wait for an answer is said to both."""
    own = {name: value for name, value in section.items() if name not in LIVE or name == "timeout"}
    return streams.live(source(**own), **{name: section[name] for name in LIVE if name in section})


def _river(name: str) -> Callable[..., Stream]:
    try:
        from river import datasets

        from hamlearn.interop.river import from_river
    except ImportError as error:
        raise ConfigError(f"stream.kind = 'river.{name}' needs River. Install hamlearn[river].") from error
    known = {n: kind for n in datasets.__all__ if isinstance(kind := getattr(datasets, n, None), type)}
    if name not in known:
        raise ConfigError(unknown(f"data set stream.kind = 'river.{name}'", name, list(known)))

    def make(unit: Unit = "auto", **columns: Any) -> Stream:
        data = known[name]()
        if not getattr(data, "is_downloaded", True):
            raise ConfigError(
                f"stream.kind = 'river.{name}' is a data set that is not on this machine. Fetch it once: "
                f"python -c 'from river import datasets; datasets.{name}().download()'"
            )
        return from_river(data, unit, **columns)

    return make


CELLS: dict[str, Callable[[int, int], nn.Module]] = {
    "rnn": nn.RNNCell,
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
    "columnar_gru": cells.ColumnarGRU,
    "rtu": cells.RTU,
    "lru": cells.LRU,
}


def build_network(config: Config, stream: Stream, classes: int | None) -> Network:
    """The network, sized by what the stream yields."""
    section, spec = config["network"], stream.spec
    inputs = _given(section["inputs"], _known_size(spec.u), "inputs")
    outputs = _given(section["outputs"], classes or _known_size(spec.target), "outputs")
    _require_loss(config["loss"]["kind"], spec.target, outputs)
    kind = section["kind"]
    hidden = section["hidden"] if isinstance(section["hidden"], list) else [section["hidden"]]
    hidden = [] if kind == "linear" else hidden
    _require_weights(kind, [inputs, *hidden, outputs])
    # Units that turn show two numbers each.
    shown = 2 * hidden[-1] if kind in ("rtu", "lru") else hidden[-1] if hidden else inputs
    readout = nn.Linear(shown, outputs)
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
    return Network.recurrent(CELLS[kind](inputs, hidden[0]), readout)


def _known_size(spec: Any) -> int | None:
    if isinstance(spec, TensorSpec) and len(spec.shape) == 1 and spec.shape[0] and spec.dtype.is_floating_point:
        return spec.shape[0]
    return None


def _given(given: int | None, known: int | None, name: str) -> int:
    if given is None and known is None:
        raise ConfigError(
            f"network.{name} is missing, and the stream cannot say it before its first sample. "
            f"Allowed is a whole number of at least 1: give network.{name}."
        )
    if given is not None and known is not None and given != known:
        raise ConfigError(
            f"network.{name} = {given} is not allowed: the stream has {known}. Leave network.{name} out."
        )
    return given or known or 0


def _require_loss(loss: str, target: Any, outputs: int) -> None:
    """Refuse a loss that would take classes for numbers, or numbers for classes, without a word."""
    if not isinstance(target, TensorSpec):
        return
    whole = not target.dtype.is_floating_point
    if whole and loss != "cross_entropy":
        raise ConfigError(
            f'loss.kind = "{loss}" is not allowed: the targets are classes. Allowed is "cross_entropy".'
        )
    if not whole and loss == "cross_entropy" and outputs == 1:
        raise ConfigError(
            'loss.kind = "cross_entropy" is not allowed: the target is one number. Allowed are "mse", "l1" and '
            '"huber"; or name the classes of the target in stream.classes.'
        )


def _require_weights(kind: str, sizes: list[int]) -> None:
    gates = {"rnn": 1, "gru": 3, "lstm": 4}.get(kind)
    if kind in ("columnar_gru", "rtu", "lru"):
        inputs, hidden, outputs = sizes
        weights = 3 * hidden * (inputs + 2) + 2 * hidden * outputs
    elif gates is None:
        weights = sum(before * after for before, after in itertools.pairwise(sizes))
    else:
        inputs, hidden, outputs = sizes
        weights = gates * hidden * (inputs + hidden) + hidden * outputs
    if weights > MOST_WEIGHTS:
        raise ConfigError(
            f"network.hidden and its inputs and outputs, {shown(sizes)}, make {weights:,} weights. Allowed are "
            f"{MOST_WEIGHTS:,}: lower network.hidden."
        )


def build_learner(config: Config, network: Network, late: int = 1000) -> Learner:
    """The learner; `late` samples may wait for their labels."""
    section, hyper = config["learner"], config["hyper"]
    credit: Credit = Forward()
    if section["credit"] == "cleared":
        credit = Cleared()
    elif section["credit"] == "echo":
        credit = Echo(truncate=section["truncate"], every=section["every"])
    elif section["credit"] == "sensitivity":
        credit = Sensitivity(**{name: section[name] for name in ("keep", "strict") if section[name] is not None})
    return Learner(
        network,
        LOSSES[config["loss"]["kind"]],
        Hyper(**hyper),
        order=section["order"],
        credit=credit,
        reset_h=section["reset_h"],
        on_nonfinite=section["on_nonfinite"],
        late=late,
    )
