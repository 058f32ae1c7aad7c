"""From a configuration to a stream, a network and a learner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn import functional

from hamlearn import cells, streams
from hamlearn.errors import ConfigError, SampleError, install
from hamlearn.experiments.run_config import Config
from hamlearn.experiments.run_derived import Key, Keys, keys_of, said, unknown
from hamlearn.experiments.run_keys import PARTS, made
from hamlearn.experiments.run_scale import tell_scale
from hamlearn.experiments.run_sections import MOST_WEIGHTS
from hamlearn.experiments.run_streams import AROUND, BROKERS, MAKERS, live_keys, stream_keys
from hamlearn.experiments.run_types import UNITS
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.streams import Stream, TensorSpec
from hamlearn.streams.table import TableStream
from hamlearn.streams.units import Unit
from hamlearn.streams.values import shown

LOSSES: dict[str, Callable[..., Any]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "cross_entropy": functional.cross_entropy,
}


def build_stream(config: Config, folder: Path) -> tuple[Stream, int | None]:
    """The stream, and the number of its classes where it knows them. Paths are relative to `folder`."""
    section = config["stream"]
    kind = section["kind"]
    own = {name: _meant(key, section[name], folder) for name, key in _keys(kind).items() if name in section}
    with said("stream", section):
        stream = _maker(kind)(**own)
    # Classes that are found on the way have their places from the start.
    classes = own.get("classes") or getattr(stream, "classes", None)
    count = classes if isinstance(classes, int) or classes is None else len(classes)
    if isinstance(stream, TableStream) and "standardize" not in section:
        tell_scale(stream)
    return _wrapped(stream, section), count


def _keys(kind: str) -> Keys:
    return stream_keys(kind) or {}


def _meant(key: Key, value: Any, folder: Path) -> Any:
    """A value as Python has it: a path, a length of time, or itself."""
    if key.path:
        return folder / value
    return float(UNITS[value]) if key.units and isinstance(value, str) and value in UNITS else value


def _wrapped(stream: Stream, section: Mapping[str, Any]) -> Stream:
    for lead, (wrap, argument) in AROUND.items():
        if section.get(lead, False) is False:
            continue
        if lead == "lags":
            _require_numbers(stream, section[lead])
        given = {name: section[name] for name in keys_of(wrap) if name in section}
        if argument is not None:
            given[argument] = section[lead]
        with said("stream", section, {argument or lead: lead}):
            stream = wrap(stream, **given)
    return stream


def _require_numbers(stream: Stream, lags: int) -> None:
    target = stream.spec.target
    if isinstance(target, TensorSpec) and len(target.shape) != 1:
        raise ConfigError(
            f"stream.lags = {lags} is not allowed: past targets become inputs where they are numbers, and these "
            "are classes. Leave stream.lags out."
        )


def _maker(kind: str) -> Callable[..., Stream]:
    family, _, name = kind.partition(".")
    if family == "river":
        return _river(name)
    return MAKERS[kind] if kind in MAKERS else lambda **section: _fed(BROKERS[kind], section)


def _fed(source: Callable[..., Any], section: dict[str, Any]) -> Stream:
    """A live feed of a broker's messages; how long to wait for an answer is said to both."""
    own = {name: value for name, value in section.items() if name in keys_of(source)}
    return streams.live(source(**own), **{name: section[name] for name in live_keys() if name in section})


def _river(name: str) -> Callable[..., Stream]:
    try:
        from river import datasets

        from hamlearn.interop.river import from_river
    except ImportError as error:
        raise ConfigError(f"stream.kind = 'river.{name}' needs River: {install('river')}") from error
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
    _require_target(config, stream)
    outputs = _given(section["outputs"], classes or _known_size(spec.target), "outputs")
    _require_loss(config, stream, outputs)
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


def _require_target(config: Config, stream: Stream) -> None:
    """Refuse a table of which nobody has said what is to be learned, nor how many outputs the network has."""
    # A service has no stream of its own.
    section = config.get("stream")
    unnamed = section is not None and "target" in _keys(section["kind"]) and "target" not in section
    if unnamed and stream.spec.target is None and config["network"]["outputs"] is None:
        raise ConfigError(
            "stream.target is missing: it names the column that is to be learned. Give stream.target, or, where "
            "there is nothing to learn, say by network.outputs how many outputs the network has."
        )


def _require_loss(config: Config, stream: Stream, outputs: int) -> None:
    """Refuse a loss that would take classes for numbers, or numbers for classes, without a word."""
    loss, target = config["loss"]["kind"], stream.spec.target
    if not isinstance(target, TensorSpec):
        return
    whole = not target.dtype.is_floating_point
    if whole and loss != "cross_entropy":
        raise ConfigError(
            f'loss.kind = "{loss}" is not allowed: the targets are classes. Allowed is "cross_entropy".'
        )
    if not whole and loss == "cross_entropy" and outputs == 1:
        raise ConfigError(
            f'loss.kind = "cross_entropy" is not allowed: {_one_number(config, stream)}. Allowed are "mse", "l1" '
            'and "huber"; or say in [stream] that the target names classes: classes = 3 finds up to 3 on the way, '
            'classes = ["a", "b"] lists them.'
        )


def _one_number(config: Config, stream: Stream) -> str:
    """That the target is one number; or, where the first row of a file holds something else, what that is."""
    if config["stream"]["kind"] == "csv":
        try:
            next(iter(stream), None)
        except SampleError as error:
            return f"without stream.classes the target is one number, but {str(error).partition('. ')[0]}"
    return "the target is one number"


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


def build_learner(config: Config, network: Network, **arguments: Any) -> Learner:
    """The learner; further arguments are given to it as they are."""
    section = config["learner"]
    own = {name: section[name] for name in keys_of(Learner) if name in section}
    own |= {part: made(section, part) for part in PARTS}
    with said("learner", section):
        return Learner(network, LOSSES[config["loss"]["kind"]], Hyper(**config["hyper"]), **own | arguments)
