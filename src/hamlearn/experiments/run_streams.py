"""What `[stream]` may say: for each kind of stream its keys, and what each of them takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hamlearn.errors import ConfigError
from hamlearn.experiments.run_keys import (
    LARGEST,
    Key,
    is_name,
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
from hamlearn.streams import signals
from hamlearn.streams.encode import POLICIES
from hamlearn.streams.places import name_of

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}

MOST_STEPS = 1_000_000
"""Steps that a signal may take before its first sample, or look ahead: more would look as if it hung."""

MOST_PLACES = 100_000
"""Categories of a column, or classes: more than a network of this command is for."""

_NUMBERS = Key(
    "a list of 1 to 1000 numbers",
    lambda v: isinstance(v, list) and 1 <= len(v) <= 1000 and all(is_number(item) for item in v),
)
_UNIT = Key(
    f"a number of seconds above 0, 'auto', or one of {', '.join(UNITS)}",
    lambda v: (isinstance(v, str) and (v == "auto" or v in UNITS)) or (is_number(v) and v > 0),
)
_BAD = one_of("raise", "skip")
_SEED, _AHEAD, _TAU = whole(least=0, most=2**63 - 1), whole(least=0, most=10_000), number(above=True)
_WASHOUT, _SUBSTEPS, _ANY = whole(least=0, most=MOST_STEPS), whole(most=10_000), number(least=-LARGEST)


def _is_policy(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    latest = re.fullmatch(r"latest-([0-9]{1,7})", value)
    return value in ("drop", "block", "latest-n") or (latest is not None and 1 <= int(latest[1]) <= 1_000_000)


def _is_missing(value: Any) -> bool:
    return is_number(value) or (isinstance(value, str) and value in POLICIES)


def _is_table(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(is_name(name) and test(item) for name, item in value.items())


def _is_places(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PLACES


def _is_room(value: Any) -> bool:
    """Whether a value names categories or classes, each once, or says how many there may be."""
    if not isinstance(value, list):
        return _is_places(value)
    names = [name_of(item) for item in value if isinstance(item, str | int | float)]
    return 0 < len(value) == len(set(names)) <= MOST_PLACES and "" not in names


_ROOM = f"a list of one or more different names, or a whole number of 1 to {MOST_PLACES:,}"
_COLUMNS: dict[str, Key] = {
    "categories": Key(f"a table from names of columns to {_ROOM}", lambda v: _is_table(v, _is_room)),
    "hashed": Key(
        f"a table from names of columns to whole numbers of 1 to {MOST_PLACES:,}",
        lambda v: _is_table(v, _is_places),
    ),
    "missing": Key(
        f"{', '.join(map(repr, POLICIES))} or a number, or a table from names of columns to these",
        lambda v: _is_missing(v) or _is_table(v, _is_missing),
    ),
}
"""What the columns of a table, or the features of a data set, hold."""


_WAVES = {
    "frequencies": _NUMBERS,
    "amplitudes": _NUMBERS,
    "phases": _NUMBERS,
    "ahead": _AHEAD,
    "tau": _TAU,
    "seed": _SEED,
}

LIVE: dict[str, Key] = {
    "policy": Key('"drop", "block", "latest-n" or, say, "latest-16"', _is_policy),
    "n": whole(most=1_000_000),
    "unit": _UNIT,
    "bad": _BAD,
    "timeout": number(above=True, most=3600.0),
}
"""How any live feed is read."""

_WHEN = one_of("saved", "learned")
_WAITING = {"window": whole(most=65_535), "patience": number(above=True)}

KINDS: dict[str, dict[str, Key]] = {
    "csv": {
        "path": text(),
        "u": Key(
            "the name of a column, or a list of one or more", lambda v: is_name(v) or (is_names(v) and v != [])
        ),
        "target": Key("the name of a column, or a list of them", lambda v: is_name(v) or is_names(v)),
        "time": text(),
        "id": text(),
        "classes": Key(_ROOM, _is_room),
        **_COLUMNS,
        "bad": _BAD,
        "time_format": text(),
        "unit": _UNIT,
        "delimiter": Key("one letter", lambda v: isinstance(v, str) and len(v) == 1),
        "encoding": text(),
    },
    "live": {"source": text(), **LIVE},
    "mqtt": {"address": text(), "client": text(), "acknowledge": _WHEN, **_WAITING, **LIVE},
    "redis": {
        "address": text(),
        "group": text(),
        "consumer": text(),
        "acknowledge": _WHEN,
        **_WAITING,
        **LIVE,
    },
    "websocket": {"address": text(), "resume": truth(False), **_WAITING, **LIVE},
    "signals.henon": {"a": _ANY, "b": _ANY, "ahead": _AHEAD, "tau": _TAU, "seed": _SEED, "washout": _WASHOUT},
    "signals.lorenz": {
        "sigma": _ANY,
        "rho": _ANY,
        "beta": _ANY,
        "ahead": _AHEAD,
        "tau": _TAU,
        "substeps": _SUBSTEPS,
        "seed": _SEED,
        "washout": _WASHOUT,
    },
    "signals.mackey_glass": {
        "delay": number(above=True),
        "beta": _ANY,
        "gamma": _ANY,
        "n": _ANY,
        "ahead": _AHEAD,
        "tau": _TAU,
        "substeps": _SUBSTEPS,
        "seed": _SEED,
        "washout": _WASHOUT,
    },
    "signals.sinusoids": _WAVES,
    "signals.squares": _WAVES,
    "signals.delayed_add": {
        "t1": whole(least=0, most=100_000),
        "t2": whole(least=0, most=100_000),
        "tau": _TAU,
        "seed": _SEED,
    },
}
"""The arguments of each kind that a file can give."""

BROKERS = ("mqtt", "redis", "websocket")
"""Kinds whose feed is made of a broker's messages."""

REQUIRED = {
    "csv": ("path",),
    "live": ("source",),
    "mqtt": ("address", "client"),
    "redis": ("address", "group"),
    "websocket": ("address",),
}

WRAPPERS: dict[str, Key] = {
    "finite": one_of("raise", "skip", "hold"),
    "max_tau": number(above=True),
    "lags": whole(most=10_000),
    "relative": truth(False),
    "standardize": truth(False),
    "hold": whole(most=1_000_000),
}
"""What any stream can be wrapped in, in this order."""


def check_stream(section: dict[str, Any]) -> None:
    """Refuse a kind, a key or a value that is not known.

    Raises:
        ConfigError: Naming the key, its value, and what is allowed.
    """
    kind = section["kind"]
    keys = {"unit": _UNIT, "bad": _BAD, **_COLUMNS} if kind.startswith("river.") else KINDS.get(kind)
    if keys is None:
        known = [
            "csv",
            "live",
            *BROKERS,
            *(f"signals.{name}" for name in signals.__all__),
            "river.<name of a data set>",
        ]
        raise ConfigError(f"stream.kind = {shown(kind)} is not known. Allowed are {', '.join(known)}.")
    for name, value in section.items():
        if name == "kind":
            continue
        key = keys.get(name) or WRAPPERS.get(name)
        if key is None:
            raise ConfigError(unknown(f"key stream.{name} of {kind}", name, ["kind", *keys, *WRAPPERS]))
        key.require(f"stream.{name}", value)
    for name in REQUIRED.get(kind, ()):
        if name not in section:
            raise ConfigError(
                f"stream.{name} is missing, which kind = {kind!r} needs. Allowed is {keys[name].allowed}."
            )
    if "relative" in section and "lags" not in section:
        raise ConfigError(
            "stream.relative is given without stream.lags, to which it belongs. Add lags = 1 or more."
        )
    _check_steps(section)


def _check_steps(section: dict[str, Any]) -> None:
    """Refuse numbers that are small enough each, but not together."""
    substeps = section.get("substeps", 10)
    for name in ("washout", "ahead"):
        if section.get(name, 0) * substeps > MOST_STEPS:
            raise ConfigError(
                f"stream.{name} = {section[name]} times stream.substeps = {substeps} is more than {MOST_STEPS:,} "
                "steps. Lower one of them."
            )
    if section["kind"] == "signals.mackey_glass":
        delay, tau = section.get("delay", 17.0), section.get("tau", 1.0)
        if not delay / tau * substeps <= MOST_STEPS:
            raise ConfigError(
                f"stream.delay = {delay} with tau = {tau} and substeps = {substeps} is more than {MOST_STEPS:,} "
                "steps long. Lower delay or substeps, or raise tau."
            )
