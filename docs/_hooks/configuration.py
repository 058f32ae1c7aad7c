"""The reference of configuration files, read from what `hamlearn run` and `hamlearn serve` accept."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hamlearn.experiments.run.keys import Key, arguments
from hamlearn.experiments.run.tables import tables
from hamlearn.serve import settings

__all__ = ["arguments", "markdown", "parts"]


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


def parts() -> list[Part]:
    """Every key that a file may have."""
    found: list[Part] = []
    for table in tables():
        heading = f"`[{table.section}]`" + (f" with `{table.when}`" if table.choice else "")
        if found and found[-1].heading == heading:
            found[-1].rows.extend(_rows(table.keys))
        else:
            found.append(Part(heading, table.about, _rows(table.keys)))
    about = "For `hamlearn serve` alone: where it listens, and the bounds on what a client may ask for."
    return [*found, Part("`[serve]`", about, _rows(settings.SERVE))]


def markdown() -> str:
    """A table for each part."""
    blocks = []
    for part in parts():
        lines = ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{row.key}` | {row.takes} | {row.default} | {row.meaning} |" for row in part.rows]
        blocks += [f"## {part.heading}", part.about, "\n".join(lines)]
    return "\n\n".join(blocks)


def _rows(keys: Mapping[str, Key]) -> list[Row]:
    return [
        Row(name, _cell(key.allowed), "required" if key.required else _default(key.default), _cell(key.meaning))
        for name, key in keys.items()
    ]


def _default(value: Any) -> str:
    if value is None:
        return ""
    text = (
        str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    )
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
