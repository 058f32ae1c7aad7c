"""The configuration of `hamlearn run`: what may be written, and what a mistake is told."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamlearn.errors import ConfigError

Config = dict[str, dict[str, Any]]
"""Sections to keys to values, all there, defaults filled in."""


@dataclass(frozen=True)
class Key:
    """What one key takes.

    Args:
        allowed: In words, for messages.
        test: Whether a value is allowed.
        default: Its value where it is left out.
    """

    allowed: str
    test: Callable[[Any], bool]
    default: Any = None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(default: Any = None, least: float = 0.0, above: bool = False) -> Key:
    """A number, at least (or above) a bound."""
    words = f"a number {'above' if above else 'of at least'} {least:g}"
    return Key(words, lambda v: _is_number(v) and (v > least if above else v >= least), default)


def whole(default: Any = None, least: int = 1) -> Key:
    """A whole number, at least a bound."""
    return Key(
        f"a whole number of at least {least}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least,
        default,
    )


def one_of(*names: str, default: str | None = None) -> Key:
    """One of several names."""
    return Key("one of " + ", ".join(f'"{name}"' for name in names), lambda v: v in names, default)


def truth(default: bool) -> Key:
    """A truth value."""
    return Key("true or false", lambda v: isinstance(v, bool), default)


def text(default: str | None = None) -> Key:
    """A text."""
    return Key("a text", lambda v: isinstance(v, str), default)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list) else [value]
    return all(isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in sizes)


def _is_beta(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else [value]
    return all(_is_number(item) and item >= 0 for item in values)


SECTIONS: dict[str, dict[str, Key]] = {
    "run": {
        "title": text("Run"),
        "steps": whole(),
        "seed": whole(0, least=0),
        "dtype": one_of("float32", "float64", default="float32"),
        "threads": whole(),
        "out": text("out/run"),
    },
    "network": {
        "kind": one_of("linear", "mlp", "rnn", "gru", "lstm", default="mlp"),
        "hidden": Key("a whole number above 0, or a list of them for an mlp", _is_sizes, 30),
        "role": one_of("output", "state", default="output"),
        "inputs": whole(),
        "outputs": whole(),
        "zero_output": truth(False),
    },
    "loss": {"kind": one_of("mse", "l1", "huber", "cross_entropy", default="mse")},
    "hyper": {
        "tau": number(1.0, above=True),
        "eta": number(1.0),
        "beta": Key("a number of at least 0, or a table from parameter names to them", _is_beta, 0.01),
        "phi": number(1.0),
        "s": Key("-1 or 1", lambda v: v in (-1, 1), -1),
        "eta_z": number(),
        "phi_first": number(),
        "clock": one_of("events", "continuous", default="events"),
    },
    "learner": {
        "order": one_of("parallel", "sequential", default="sequential"),
        "credit": one_of("forward", "cleared", "echo", default="cleared"),
        "truncate": whole(),
        "every": whole(),
        "reset_h": one_of("boundary", "sample", default="boundary"),
        "on_nonfinite": one_of("raise", "skip", default="raise"),
        "engine": one_of("eager", "compiled", default="eager"),
        "chunk": whole(256),
    },
    "records": {
        "every": whole(50),
        "windows": whole(),
        "metrics": Key("a list of names of River's metrics", _is_names, []),
        "metric_window": whole(),
        "tensorboard": truth(False),
        "report": truth(True),
    },
    "checkpoint": {"every": whole(1000)},
}


def load(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: Naming the key, its value, and what is allowed.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Give the path of a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error
    return check(raw)


def check(raw: Mapping[str, Any]) -> Config:
    """Fill in defaults; refuse unknown keys and values that are not allowed.

    Example:
        >>> check({"stream": {"kind": "signals.henon"}, "hyper": {"eta": 0.5}})["hyper"]["tau"]
        1.0
    """
    names = ["stream", *SECTIONS]
    for section, keys in raw.items():
        if section not in names:
            raise ConfigError(unknown(f"section [{section}]", section, names))
        if not isinstance(keys, dict):
            raise ConfigError(f"{section} = {keys!r} is no section. Write [{section}] and its keys below it.")
    stream = dict(raw.get("stream", {}))
    if not isinstance(stream.get("kind"), str):
        raise ConfigError('stream.kind is missing. Give the stream, for example kind = "signals.mackey_glass".')
    config: Config = {"stream": stream}
    for section, keys in SECTIONS.items():
        given = raw.get(section, {})
        for name, value in given.items():
            if name not in keys:
                raise ConfigError(unknown(f"key {section}.{name}", name, list(keys)))
            if not keys[name].test(value):
                raise ConfigError(f"{section}.{name} = {value!r} is not allowed. Allowed is {keys[name].allowed}.")
        config[section] = {name: given.get(name, key.default) for name, key in keys.items()}
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    network, learner = config["network"], config["learner"]
    if isinstance(network["hidden"], list) and network["kind"] not in ("mlp", "linear"):
        raise ConfigError(
            f"network.hidden = {network['hidden']} is not allowed for kind {network['kind']!r}. "
            "Allowed is one whole number above 0."
        )
    if learner["credit"] != "echo":
        for name in ("truncate", "every"):
            if learner[name] is not None:
                raise ConfigError(
                    f"learner.{name} = {learner[name]} is not allowed with credit {learner['credit']!r}. "
                    'It belongs to credit = "echo".'
                )
    if config["records"]["metric_window"] and not config["records"]["metrics"]:
        raise ConfigError("records.metric_window is given but records.metrics is empty. Name a metric.")


def unknown(what: str, name: str, allowed: Sequence[str]) -> str:
    """The message for a name that nobody knows."""
    near = difflib.get_close_matches(name, allowed, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"the {what} is not known.{hint} Allowed are {', '.join(allowed)}."
