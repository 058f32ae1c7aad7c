"""The configuration of `hamlearn run`: what may be written, and what a mistake is told."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hamlearn.adaptive import Adaptive
from hamlearn.errors import ConfigError
from hamlearn.experiments.run_keys import (
    Key,
    is_names,
    is_number,
    number,
    one_of,
    shown,
    text,
    truth,
    unknown,
    whole,
)
from hamlearn.experiments.run_streams import check_stream
from hamlearn.hyper import Hyper

LONGEST = 1 << 20
"""Bytes of the longest file that is read: nobody writes a longer one."""

MOST_UNITS, MOST_WEIGHTS = 1_000_000, 100_000_000
"""Neurons in a layer, and weights in a network: more than this command is for."""

Config = dict[str, dict[str, Any]]
"""Sections to keys to values, all there, defaults filled in."""


def _is_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list) else [value]
    fit = all(isinstance(item, int) and not isinstance(item, bool) and 0 < item <= MOST_UNITS for item in sizes)
    return fit and len(sizes) <= 1000


def _is_metrics(value: Any) -> bool:
    return is_names(value) and len(set(value)) == len(value)


def _is_share(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1


def _is_beta(value: Any) -> bool:
    if isinstance(value, Adaptive):
        return True
    values = list(value.values()) if isinstance(value, dict) else [value]
    return bool(values) and all(is_number(item) and item >= 0 for item in values)


SECTIONS: dict[str, dict[str, Key]] = {
    "run": {
        "title": text("Run"),
        "steps": whole(),
        "seed": whole(0, least=0, most=2**63 - 1),
        "dtype": one_of("float32", "float64", default="float32"),
        "threads": whole(most=256),
        "out": text("out/run"),
    },
    "network": {
        "kind": one_of("linear", "mlp", "rnn", "gru", "lstm", "columnar_gru", "rtu", "lru", default="mlp"),
        "hidden": Key(f"a whole number of 1 to {MOST_UNITS:,}, or a list of them for an mlp", _is_sizes, 30),
        "role": one_of("output", "state", default="output"),
        "inputs": whole(most=MOST_UNITS),
        "outputs": whole(most=MOST_UNITS),
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
        "weight_decay": number(0.0),
    },
    "learner": {
        "order": one_of("parallel", "sequential", default="sequential"),
        "credit": one_of("forward", "cleared", "echo", "sensitivity", default="cleared"),
        "truncate": whole(),
        "every": whole(),
        "keep": Key("a number between 0 and 1", _is_share),
        "strict": Key("true or false", lambda v: isinstance(v, bool)),
        "reset_h": one_of("boundary", "sample", default="boundary"),
        "on_nonfinite": one_of("raise", "skip", default="raise"),
        "engine": one_of("eager", "compiled", default="eager"),
        "chunk": whole(256, most=65_536),
        "pipeline": whole(most=1000),
    },
    "records": {
        "every": whole(50),
        "windows": whole(),
        "metrics": Key("a list of different names of River's metrics", _is_metrics, []),
        "metric_window": whole(most=10_000_000),
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
    return check(read(path))


def read(path: Path) -> dict[str, Any]:
    """What a TOML file says, not yet checked."""
    try:
        data = path.read_bytes()
        if len(data) > LONGEST:
            raise ConfigError(f"{path} has {len(data):,} bytes. Allowed are {LONGEST:,}: give a TOML file.")
        # Some editors begin a file with a mark that TOML does not know.
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Give the path of a TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error}). Save it as UTF-8, as TOML asks.") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply. Allowed are sections with keys.") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error


def check(raw: Mapping[str, Any]) -> Config:
    """Fill in defaults; refuse unknown keys and values that are not allowed.

    Example:
        >>> check({"stream": {"kind": "signals.henon"}, "hyper": {"eta": 0.5}})["hyper"]["tau"]
        1.0
    """
    require_sections(raw, ["stream", *SECTIONS])
    stream = dict(raw.get("stream", {}))
    if not isinstance(stream.get("kind"), str):
        raise ConfigError('stream.kind is missing. Give the stream, for example kind = "signals.mackey_glass".')
    check_stream(stream)
    config: Config = {"stream": stream, **filled(raw, SECTIONS)}
    if config["records"]["metric_window"] and not config["records"]["metrics"]:
        raise ConfigError("records.metric_window is given but records.metrics is empty. Name a metric.")
    return config


def require_sections(raw: Mapping[str, Any], names: list[str]) -> None:
    """Refuse sections of other names, and what is no section."""
    for section, keys in raw.items():
        if section not in names:
            raise ConfigError(unknown(f"section [{section}]", section, names))
        if not isinstance(keys, dict):
            raise ConfigError(f"{section} = {shown(keys)} is no section. Write [{section}] and its keys below it.")


def filled(raw: Mapping[str, Any], sections: Mapping[str, Mapping[str, Key]]) -> Config:
    """The sections with defaults filled in; refuses unknown keys, and values that are not allowed."""
    config: Config = {}
    for section, keys in sections.items():
        given = raw.get(section, {})
        if section == "hyper":
            given = _rates(given)
        for name, value in given.items():
            if name not in keys:
                raise ConfigError(unknown(f"key {section}.{name}", name, list(keys)))
            keys[name].require(f"{section}.{name}", value)
        config[section] = {name: given.get(name, key.default) for name, key in keys.items()}
    _check_together(config)
    return config


def _is_kept(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def _is_betas(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_kept, value))


_DECAY, _EPS, _KEPT = number(0.0), number(above=True), Key("a number of at least 0 and below 1", _is_kept)
_BETAS = Key("a list of two numbers of at least 0 and below 1", _is_betas)
RULES: dict[str, tuple[Callable[..., Hyper], dict[str, Key]]] = {
    "sgd": (Hyper.from_sgd, {"momentum": number(most=1.0), "dampening": number(most=1.0)}),
    "adam": (Hyper.from_adam, {"betas": _BETAS, "eps": _EPS}),
    "adamw": (Hyper.from_adamw, {"betas": _BETAS, "eps": _EPS}),
    "rmsprop": (Hyper.from_rmsprop, {"alpha": _KEPT, "eps": _EPS}),
}
"""What [hyper] may say in the words of PyTorch's optimizers, instead of η, β and φ, beside lr and weight_decay."""


def _rates(given: Mapping[str, Any]) -> dict[str, Any]:
    """The section [hyper] with the words of an optimizer, such as a learning rate, said in τ, η, β and φ."""
    words = ["lr", "rule", *dict.fromkeys(name for _, keys in RULES.values() for name in keys)]
    said = [name for name in words if name in given]
    if not said:
        return dict(given)
    if "lr" not in given:
        raise ConfigError(f"hyper.{said[0]} is given without hyper.lr, to which it belongs. Add lr, or give eta.")
    one_of(*RULES).require("hyper.rule", rule := given.get("rule", "sgd"))
    make, own = RULES[rule]
    keys = {"lr": number(), "tau": SECTIONS["hyper"]["tau"], "weight_decay": _DECAY, **own}
    for name in said:
        if name not in (*keys, "rule"):
            rules = ", ".join(f'"{other}"' for other, (_, theirs) in RULES.items() if name in theirs)
            raise ConfigError(f'hyper.{name} is not a word of hyper.rule = "{rule}". It belongs to {rules}.')
    for name in ("eta", "beta", "phi", "eta_z", "phi_first"):
        if name in given:
            raise ConfigError(
                f"hyper.lr and hyper.{name} say the same thing twice: lr is tau times beta, momentum is 1 - tau "
                "times eta, dampening is 1 - tau times phi. Give lr, momentum and dampening, or eta, beta and phi."
            )
    settings = {name: given[name] for name in keys if name in given}
    for name, value in settings.items():
        keys[name].require(f"hyper.{name}", value)
    made = make(**settings)
    rest = {name: value for name, value in given.items() if name not in words}
    names = ("eta", "beta", "phi", "eta_z", "phi_first", "weight_decay")
    return rest | {name: value for name in names if (value := getattr(made, name)) is not None}


def _check_together(config: Config) -> None:
    network, learner = config["network"], config["learner"]
    if isinstance(network["hidden"], list) and network["kind"] not in ("mlp", "linear"):
        raise ConfigError(
            f"network.hidden = {shown(network['hidden'])} is not allowed for kind {network['kind']!r}. "
            "Allowed is one whole number above 0."
        )
    for credit, names in (("echo", ("truncate", "every")), ("sensitivity", ("keep", "strict"))):
        for name in names:
            if learner["credit"] != credit and learner[name] is not None:
                raise ConfigError(
                    f"learner.{name} = {shown(learner[name])} is not allowed with credit {learner['credit']!r}. "
                    f'It belongs to credit = "{credit}".'
                )
    if type(config["hyper"]["s"]) is not int:
        raise ConfigError(f"hyper.s = {config['hyper']['s']!r} is not allowed. Allowed is -1 or 1.")
