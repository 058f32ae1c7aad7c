"""The reference of configuration files, read from what `hamlearn run` and `hamlearn serve` accept."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hamlearn import credit, hyper, streams
from hamlearn.experiments import run_config, run_streams
from hamlearn.learner import Learner
from hamlearn.serve import settings


class Row(NamedTuple):
    """One key of a file."""

    key: str
    takes: str
    default: str
    meaning: str


class Part(NamedTuple):
    """Keys that stand together, under a heading and after a sentence."""

    heading: str
    about: str
    rows: list[Row]


SECTIONS = {
    "run": ("The run as a whole.", ()),
    "network": ("The network; without `inputs` and `outputs` it has the sizes that the stream yields.", ()),
    "loss": ("What is minimised.", ()),
    "hyper": (
        "The rates: either in the symbols of the equations, as here, or in the words of an optimizer.",
        (hyper.Hyper,),
    ),
    "learner": (
        "How it learns, and which engine runs it.",
        (Learner, credit.Echo, credit.Sensitivity, Learner.run),
    ),
    "records": ("What is kept of the run.", ()),
    "checkpoint": ("When the run is saved.", ()),
}


def parts() -> list[Part]:
    """Every key that a file may have. The one place that knows where the tables of keys are."""
    found = [
        Part(f"`[{name}]`", about, _rows(run_config.SECTIONS[name], owners))
        for name, (about, owners) in SECTIONS.items()
    ]
    for rule, (make, keys) in run_config.RULES.items():
        about = f'With `rule = "{rule}"`, beside `lr` and `weight_decay` and in place of `eta`, `beta` and `phi`.'
        found.append(Part(f'`[hyper]` with `rule = "{rule}"`', about, _rows(keys, (make,))))
    wrappers = (streams.finite, streams.autoregress, streams.standardize, streams.hold)
    about = "For any kind of stream; they are applied in this order."
    found.append(Part("`[stream]`", about, _rows(run_streams.WRAPPERS, wrappers)))
    for kind, keys in run_streams.KINDS.items():
        needed = run_streams.REQUIRED.get(kind, ())
        rows = _rows(keys, _owners(kind), needed)
        found.append(Part(f'`[stream]` with `kind = "{kind}"`', "Beside the keys of every stream.", rows))
    about = "For `hamlearn serve` alone: where it listens, and the bounds on what a client may ask for."
    found.append(Part("`[serve]`", about, _rows(settings.SERVE, ())))
    return found


def markdown() -> str:
    """A table for each part."""
    blocks = []
    for part in parts():
        lines = ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{row.key}` | {row.takes} | {row.default} | {row.meaning} |" for row in part.rows]
        blocks += [f"## {part.heading}", part.about, "\n".join(lines)]
    return "\n\n".join(blocks)


def arguments(owner: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function or a class says about each of its arguments."""
    text = inspect.getdoc(owner) or ""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", section[1].rstrip() if section else ""):
        name, colon, meaning = entry.strip().partition(": ")
        if colon:
            found[name] = " ".join(meaning.split())
    return found


def _rows(
    keys: Mapping[str, Any], owners: tuple[Callable[..., Any], ...], needed: tuple[str, ...] = ()
) -> list[Row]:
    meanings: dict[str, str] = {}
    for owner in owners:
        meanings = arguments(owner) | meanings
    rows = []
    for name, key in keys.items():
        default = "required" if name in needed else _default(key.default)
        rows.append(Row(name, _cell(key.allowed), default, _cell(meanings.get(name, ""))))
    return rows


def _owners(kind: str) -> tuple[Callable[..., Any], ...]:
    if kind.startswith("signals."):
        return (getattr(streams.signals, kind.removeprefix("signals.")),)
    return (getattr(streams, kind), *(() if kind in ("csv", "live") else (streams.live,)))


def _default(value: Any) -> str:
    """As TOML writes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
