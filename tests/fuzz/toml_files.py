"""Spoiled configurations: a `ConfigError` that names what is wrong, or a learner that takes its steps."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import random
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hamlearn.errors import ConfigError, HamlearnError
from hamlearn.experiments.run.build import build_learner, build_network, build_stream
from hamlearn.experiments.run.config import load
from hamlearn.experiments.run.keys import Key, validate
from hamlearn.experiments.run.opened import _scores as build_scores
from hamlearn.experiments.run.tables import SECTIONS, tables
from tests.fuzz.spoil import by_bytes, require, run_cases

PIECES = [
    b'"', b"'", b"[", b"]", b"[[", b"{", b"}", b"=", b"#", b"\n", b".", b"true", b"nan", b"inf", b"-inf", b"1e400",
    b"-1", b"0", b"1_000", b"0x7f", b"0b1", b"2024-01-01", b"07:32:00", b"9" * 30, b"9" * 5000, b"[" * 60_000,
    b"\xff", b"\xef\xbb\xbf", b"\0", b'"""', b"\\u0000", b"a.b.c = 1\n", b"[stream]\n", b"[run.x]\n", b"\r",
]  # fmt: skip
VALUES = [
    "true", "false", "0", "1", "2", "-1", "3", "1000", "0.0",
    "0.5", "-0.5", "1e-9", "1e-320", "1e308", "nan", "inf", "-inf", '""', '"x"',
    '"raise"', '"skip"', '"hold"', '"\\u0000"', '"data.csv"', '"a"', '"hours"', '"latest-5"',
    '"latest-99999999"', '"tcp://[::1"', "[]", '["a"]', '["a", "a"]', '["a", 1]', "[1, 2]", "[[1]]", "[0.1]",
    "[nan]", "{}", "{a = 1}", "{a = {b = 1}}", "2024-01-01", "07:32:00", '";"', '"é"', '"utf-16"', '"cp037"',
    '"%Y%Y"', "[" + "1," * 2000 + "]", '"' + "x" * 300 + '"', '"MAE"', '["MAE"]', '["ROCAUC"]',
    '["RollingROCAUC"]', '["Accuracy"]', '["base"]', '["MAE", "MAE"]', '{"*" = 0.1}', '{"output.*" = 0.5}',
    "-9223372036854775808",
]  # fmt: skip
LIKELY = [
    "0",
    "1",
    "2",
    "3",
    "0.5",
    "2.5",
    "true",
    "false",
    '"skip"',
    '"hold"',
    '"state"',
    '"sample"',
    '"l1"',
    '"rnn"',
]
LIKELY += [
    '"parallel"',
    '"cleared"',
    '"forward"',
    '"echo"',
    '"float64"',
    '["MAE"]',
    "[3, 4]",
    "[0.1, 0.2]",
    '"days"',
]
BASE: list[dict[str, dict[str, str]]] = [
    {"stream": {"kind": '"signals.henon"'}, "network": {"kind": '"linear"'}},
    {"stream": {"kind": '"signals.mackey_glass"', "substeps": "2", "washout": "3"}, "network": {"kind": '"gru"'}},
    {"stream": {"kind": '"signals.lorenz"', "washout": "2"}, "records": {"metrics": '["MAE"]', "every": "3"}},
    {"stream": {"kind": '"signals.sinusoids"', "lags": "2"}, "learner": {"credit": '"echo"', "every": "2"}},
    {"stream": {"kind": '"signals.squares"', "standardize": "true"}, "network": {"kind": '"lstm"', "hidden": "3"}},
    {"stream": {"kind": '"signals.delayed_add"', "hold": "2"}, "hyper": {"eta": "0.5", "beta": "0.02"}},
    {"stream": {"kind": '"csv"', "path": '"data.csv"', "u": '["a", "b"]', "target": '"b"', "time": '"t"'}},
    {
        "stream": {
            "kind": '"csv"', "path": '"data.csv"', "u": '["a"]', "target": '"kind"', "classes": '["cat", "dog"]'
        },
        "loss": {"kind": '"cross_entropy"'},
        "records": {"metrics": '["Accuracy"]'},
    },
]  # fmt: skip
STEPS = 3
KEYS: dict[str, dict[str, Key]] = {}
"""Every key of each section, whatever the section says."""
for _table in tables():
    KEYS.setdefault(_table.section, {}).update(_table.keys)


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil, build and step until the time, or the number of cases, is over."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
            # A loss that broadcasts warns, as PyTorch does everywhere.
            warnings.simplefilter("ignore")
            path = Path(name) / "config.toml"
            path.with_name("data.csv").write_text(
                "t,a,b,kind\n" + "".join(f"{k},{k % 3},{-k},{'cat' if k % 2 else 'dog'}\n" for k in range(9))
            )
            return run_cases("toml_files", lambda draw: case(draw, path), seconds, seed, cases, only)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def case(draw: random.Random, path: Path) -> str:
    """One file: loaded, built, and run for a few steps."""
    data = text(draw).encode()
    path.write_bytes(by_bytes(draw, data, PIECES) if draw.random() < 0.2 else data)
    try:
        config = load(path)
    except ConfigError as error:
        message = str(error)
        require(len(message) < 6000, lambda: "a message of many pages")
        message.encode()
        return "refused"
    unchanged(config, path)
    torch.manual_seed(0)
    try:
        with given_up(config):
            stream, classes = build_stream(config, path.parent)
            learner = build_learner(config, build_network(config, stream, classes))
            scores = build_scores(config)
            if config["stream"]["kind"] == "live":
                return "built"
            for report in learner.run(stream, STEPS):
                if report.sample.target is not None and not report.skipped:
                    scores.update(report.y, report.sample.target)
    except ConfigError:
        return "refused when built"
    except HamlearnError:
        return "stopped"
    return "ran"


@contextlib.contextmanager
def given_up(config: dict[str, Any]) -> Iterator[None]:
    """With the type that the file asks for, as a run has it; threads are left alone."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config["run"]["dtype"]))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def text(draw: random.Random) -> str:
    """A configuration in which a few keys have other values."""
    sections = copy.deepcopy(draw.choice(BASE))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        section = draw.choice(["stream", "stream", "stream", *SECTIONS])
        known = KEYS[section]
        keys = [*known, "kind", "seed", "x"] if draw.random() < 0.1 else list(known)
        name = draw.choice(keys)
        fits = allowed(section, name) if name in known and draw.random() < 0.6 else ()
        sections.setdefault(section, {})[name] = draw.choice(fits or VALUES)
        if draw.random() < 0.1 and sections[section]:
            del sections[section][draw.choice(list(sections[section]))]
        if "kind" not in sections["stream"]:
            break
    lines = []
    for section, pairs in sections.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in pairs.items())]
    return "\n".join(lines) + "\n"


@functools.cache
def allowed(section: str, name: str) -> tuple[str, ...]:
    """The values that a key takes."""
    found = []
    for value in (*VALUES, *LIKELY):
        with contextlib.suppress(ConfigError):
            validate(section, {name: tomllib.loads(f"x = {value}")["x"]}, {name: KEYS[section][name]})
            found.append(value)
    return tuple(found)


def unchanged(config: dict[str, Any], path: Path) -> None:
    """Whether every value is the one that the file gives."""
    raw = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    for section, name in ((section, name) for section, keys in raw.items() for name in keys):
        if (section, name) not in (("stream", "path"), ("run", "out")):
            given, found = raw[section][name], config[section][name]
            require(repr(given) == repr(found), lambda given=given, found=found: f"{found} is not {given}")
