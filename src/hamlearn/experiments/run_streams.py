"""What `[stream]` may say: for each kind of stream the arguments of the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hamlearn import streams
from hamlearn.errors import ConfigError, install
from hamlearn.experiments.run_derived import MOST_STEPS, Key, Keys, keys_of, optional, unknown, without
from hamlearn.experiments.run_types import Truth
from hamlearn.streams import Stream, signals
from hamlearn.streams.values import shown

MAKERS: dict[str, Callable[..., Stream]] = {
    "csv": streams.csv,
    "live": streams.live,
    **{f"signals.{name}": getattr(signals, name) for name in signals.__all__},
}
"""Kinds of streams: a function that is added here can be called from a file, and its arguments are keys."""

BROKERS: dict[str, Callable[..., Any]] = {
    "mqtt": streams.mqtt,
    "redis": streams.redis,
    "websocket": streams.websocket,
}
"""Kinds whose live feed is made of a broker's messages."""

AROUND: dict[str, tuple[Callable[..., Stream], str | None]] = {
    "finite": (streams.finite, "policy"),
    "max_tau": (streams.clip_tau, "longest"),
    "lags": (streams.autoregress, "lags"),
    "standardize": (streams.standardize, None),
    "hold": (streams.hold, "k"),
}
"""What any stream can be wrapped in, in this order: the key that asks for it, and the argument that it gives, or
`None` where it says true or false. Further arguments are keys by their own names."""

RIVER = "river.<name of a data set>"


def live_keys() -> Keys:
    """How any live feed is read."""
    return without(keys_of(streams.live), "source")


def stream_keys(kind: str) -> Keys | None:
    """The keys of a kind of stream; `None` where there is no such kind."""
    if kind in BROKERS:
        return {**keys_of(BROKERS[kind]), **without(live_keys(), *keys_of(BROKERS[kind]))}
    if kind.startswith("river."):
        return _river_keys()
    return keys_of(MAKERS[kind]) if kind in MAKERS else None


def _river_keys() -> Keys:
    try:
        from hamlearn.interop.river import from_river
    except ImportError as error:
        raise ConfigError(f"stream.kind = 'river.…' needs River: {install('river')}") from error
    return keys_of(from_river)


def _wrapper_keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for lead, (wrap, argument) in AROUND.items():
        keys = dict(keys_of(wrap))
        about = (wrap.__doc__ or "").partition("\n")[0]
        found[lead] = Key(Truth, False, meaning=about) if argument is None else optional(keys.pop(argument), None)
        found |= keys
    return found


WRAPPERS = _wrapper_keys()
"""The keys of all that a stream can be wrapped in."""


def check_stream(section: Mapping[str, Any]) -> None:
    """Refuse a kind, a key or a value that is not known.

    Raises:
        ConfigError: Naming the key, its value, and what is allowed.
    """
    kind = section["kind"]
    keys = stream_keys(kind)
    if keys is None:
        known = ", ".join([*MAKERS, *BROKERS, RIVER])
        raise ConfigError(f"stream.kind = {shown(kind)} is not known. Allowed are {known}.")
    for name, value in section.items():
        if name == "kind":
            continue
        key = keys.get(name) or WRAPPERS.get(name)
        if key is None:
            raise ConfigError(unknown(f"key stream.{name} of {kind}", name, ["kind", *keys, *WRAPPERS]))
        key.require(f"stream.{name}", value)
    for name, key in keys.items():
        if key.required and name not in section:
            raise ConfigError(f"stream.{name} is missing, which kind = {kind!r} needs. Allowed is {key.allowed}.")
    for lead, (wrap, argument) in AROUND.items():
        for name in without(keys_of(wrap), argument or ""):
            if name in section and not section.get(lead):
                raise ConfigError(
                    f"stream.{name} is given without stream.{lead}, to which it belongs. Add {lead}: it takes "
                    f"{WRAPPERS[lead].allowed}."
                )
    _check_steps(section)


def _check_steps(section: Mapping[str, Any]) -> None:
    """Refuse numbers that are small enough each, but not together."""
    keys = stream_keys(section["kind"]) or {}
    said = {name: section.get(name, key.default) for name, key in keys.items()}
    substeps = said.get("substeps", 1)
    for name in ("washout", "ahead"):
        if said.get(name, 0) * substeps > MOST_STEPS:
            raise ConfigError(
                f"stream.{name} = {said[name]} times stream.substeps = {substeps} is more than {MOST_STEPS:,} "
                "steps. Lower one of them."
            )
    if section["kind"] == "signals.mackey_glass":
        delay, tau = said["delay"], said["tau"]
        if tau > 0 and delay * substeps > MOST_STEPS * tau:
            raise ConfigError(
                f"stream.delay = {delay} with tau = {tau} and substeps = {substeps} is more than {MOST_STEPS:,} "
                "steps long. Lower delay or substeps, or raise tau."
            )
