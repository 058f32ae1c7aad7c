"""The configuration of `hamlearn run`: a TOML file, checked and with its defaults filled in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.experiments.run.keys import not_allowed, unknown, validate
from hamlearn.experiments.run.tables import RIVER, SECTIONS, TABULAR, Table, tables

Config = dict[str, dict[str, Any]]
"""Sections to keys to values; defaults are filled in, except in `[stream]`."""


def load(path: Path) -> Config:
    """Read and check a configuration file; paths in it are relative to its folder.

    Raises:
        ConfigError: Naming the key, its value, and what is allowed.
    """
    config = check(read(path))
    folder = path.absolute().parent
    for section, name in (("stream", "path"), ("run", "out")):
        if name in config[section]:
            config[section][name] = str(folder / config[section][name])
    return config


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML file, not yet checked."""
    try:
        # Some editors begin a file with a byte order mark, which TOML does not have.
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Give the path of a TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error}). Save it as UTF-8, as TOML asks.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}. Correct it there.") from error


def check(raw: Mapping[str, Any]) -> Config:
    """Check a configuration and fill in defaults.

    Example:
        >>> check({"stream": {"kind": "signals.henon"}, "hyper": {"eta": 0.5}})["hyper"]["tau"]
        1.0
    """
    require_sections(raw, ["stream", *SECTIONS])
    return {"stream": _stream(raw.get("stream", {})), **filled(raw, SECTIONS)}


def require_sections(raw: Mapping[str, Any], names: list[str]) -> None:
    """Raise for sections of other names, and for values in place of sections."""
    for section, keys in raw.items():
        if section not in names:
            raise ConfigError(unknown(f"section [{section}]", section, names))
        if not isinstance(keys, dict):
            raise not_allowed(section, keys, f"Write [{section}], and its keys below it.")


def filled(raw: Mapping[str, Any], names: Iterable[str], known: Sequence[Table] = ()) -> Config:
    """These sections of a file, checked and with defaults filled in.

    Args:
        raw: What the file says.
        names: Of the sections.
        known: Their keys, if not those of `hamlearn run`.
    """
    known = known or tables()
    config = {name: _checked(name, raw.get(name, {}), known) for name in names}
    network = config["network"]
    if isinstance(network["hidden"], list) and network["kind"] not in ("mlp", "linear"):
        raise not_allowed("network.hidden", network["hidden"], f"kind {network['kind']!r} takes one whole number.")
    return config


def _stream(given: Mapping[str, Any]) -> dict[str, Any]:
    """The section [stream], checked; no defaults are filled in, since the function that makes it has them."""
    kind, known = given.get("kind"), tables()
    if not isinstance(kind, str):
        raise ConfigError('stream.kind is missing. Give the stream, for example kind = "signals.mackey_glass".')
    if kind.startswith("river.") and not find_spec("river"):
        raise ConfigError(f"stream.kind = {kind!r} needs River: {install('river')}")
    chosen = RIVER if kind.startswith("river.") else kind
    kinds = [str(table.choice) for table in known if table.chooser == "kind"]
    if chosen not in kinds:
        raise ConfigError(unknown(f"stream.kind = {kind!r}", kind, kinds))
    tabular = {"standardize": True} if chosen in TABULAR else {}
    _checked("stream", {**tabular, **given, "kind": chosen}, known)
    return {**tabular, **given}


def _checked(section: str, given: Mapping[str, Any], known: Iterable[Table]) -> dict[str, Any]:
    """A section with its defaults filled in, once every key is known and has a value that is allowed."""
    own = [table for table in known if table.section == section]
    if section == "hyper" and "lr" in given:
        given = {"rule": "sgd", **given}
    always = {name: key for table in own if not table.chooser for name, key in table.keys.items()}
    validate(section, {name: value for name, value in given.items() if name in always}, always)
    chosen = {name: key.default for name, key in always.items()} | dict(given)
    keys = {name: key for table in own if table.fits(chosen) for name, key in table.keys.items()}
    for name, value in given.items():
        elsewhere = [table.when for table in own if name in table.keys]
        if name not in keys and elsewhere:
            raise not_allowed(f"{section}.{name}", value, f"It belongs to {' or '.join(elsewhere)}.")
    validate(section, given, keys)
    return {name: key.default for name, key in keys.items()} | dict(given)
