"""The configuration of `hamlearn run`: what may be written, and what a mistake is told."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hamlearn.errors import ConfigError
from hamlearn.experiments.run_derived import Key, Keys, keys_of, said, unknown
from hamlearn.experiments.run_keys import PARTS, RULES, SECTIONS, TICKS, made, parts_of
from hamlearn.experiments.run_streams import check_stream
from hamlearn.hyper import Hyper
from hamlearn.streams.values import shown

LONGEST = 1 << 20
"""Bytes of the longest file that is read: nobody writes a longer one."""

Config = dict[str, dict[str, Any]]
"""Sections to keys to values, all there, defaults filled in."""


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


def filled(raw: Mapping[str, Any], sections: Mapping[str, Keys]) -> Config:
    """The sections with defaults filled in; refuses unknown keys, and values that are not allowed."""
    config = {name: _filled(name, raw.get(name, {}), keys) for name, keys in sections.items()}
    network = config["network"]
    if isinstance(network["hidden"], list) and network["kind"] not in ("mlp", "linear"):
        raise ConfigError(
            f"network.hidden = {shown(network['hidden'])} is not allowed for kind {network['kind']!r}. "
            "Allowed is one whole number above 0."
        )
    learner = config["learner"]
    if learner[TICKS] != 1 and learner["pipeline"] is None:
        raise ConfigError(
            f"learner.{TICKS} = {shown(learner[TICKS])} is given without learner.pipeline, and one process sends "
            "no messages. Say into how many groups the network is split, or leave it out."
        )
    return config


def _filled(section: str, given: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    if section == "hyper":
        return _hyper(given, keys)
    if section == "learner":
        return _learner(given, keys)
    _require(section, given, keys)
    return {name: given.get(name, key.default) for name, key in keys.items()}


def _require(section: str, given: Mapping[str, Any], keys: Keys) -> None:
    for name, value in given.items():
        if name not in keys:
            raise ConfigError(unknown(f"key {section}.{name}", name, list(keys)))
        keys[name].require(f"{section}.{name}", value)


def _learner(given: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The section [learner], with the arguments of the credit and the integrator that it names."""
    for part in PARTS:
        if part in given:
            keys[part].require(f"learner.{part}", given[part])
    chosen = {part: given.get(part, keys[part].default) for part in PARTS}
    allowed = {**keys, **parts_of(chosen)}
    for name, value in given.items():
        for part, classes in PARTS.items():
            owners = [one for one, kind in classes.items() if name in keys_of(kind)]
            if name not in allowed and owners:
                raise ConfigError(
                    f"learner.{name} = {shown(value)} is not allowed with {part} {chosen[part]!r}. "
                    f'It belongs to {part} = "{owners[0]}".'
                )
    _require("learner", given, allowed)
    found = {name: given.get(name, key.default) for name, key in allowed.items()}
    for part in PARTS:
        made(found, part)
    return found


def _hyper(given: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The section [hyper], also where it speaks of learning rates, said in τ, η, β and φ."""
    words = dict.fromkeys(name for make in RULES.values() for name in keys_of(make) if name not in keys)
    spoken = [name for name in ("rule", *words) if name in given]
    if spoken:
        hyper = _by_rule(given, keys, spoken)
    else:
        _require("hyper", given, {**keys, "rule": _RULE, **dict.fromkeys(words, _RULE)})
        with said("hyper", given):
            hyper = Hyper(**given)
    return {name: getattr(hyper, name) for name in keys}


_RULE = Key(Literal[tuple(RULES)])


def _by_rule(given: Mapping[str, Any], keys: Keys, spoken: list[str]) -> Hyper:
    rule = given.get("rule", "sgd")
    _RULE.require("hyper.rule", rule)
    make = RULES[rule]
    own, beside = keys_of(make), {name: keys[name] for name in ("s", "clock")}
    if "lr" not in given and own["lr"].required:
        raise ConfigError(
            f"hyper.{spoken[0]} is given without hyper.lr, to which it belongs. Add lr, or give eta."
        )
    for name in given:
        if name in spoken and name != "rule" and name not in own:
            rules = ", ".join(f'"{other}"' for other, theirs in RULES.items() if name in keys_of(theirs))
            raise ConfigError(f'hyper.{name} is not a word of hyper.rule = "{rule}". It belongs to {rules}.')
        if name in keys and name not in own and name not in beside:
            raise ConfigError(
                f"hyper.{'lr' if 'lr' in given else 'rule'} and hyper.{name} say the same thing twice: lr is tau "
                "times beta, momentum is 1 - tau times eta, dampening is 1 - tau times phi. Give lr, momentum and "
                "dampening, or eta, beta and phi."
            )
    _require("hyper", given, {"rule": _RULE, **own, **beside})
    with said("hyper", given):
        hyper = make(**{name: value for name, value in given.items() if name in own})
        return replace(hyper, **{name: value for name, value in given.items() if name in beside})
