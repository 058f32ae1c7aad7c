"""Writes the parts of pages that come from the code, or from reports: commands, keys, errors, measured figures.

A page asks for one by a line `<!-- generated: NAME -->`; no second copy is kept by hand. A figure of a report in a
sentence is `{figure NAME}`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_tables
import commands
import configuration
import error_index
from mkdocs.exceptions import PluginError

MARK = re.compile(r"^<!-- generated: ([\w -]+) -->$", re.MULTILINE)
FIGURE = re.compile(r"\{figure ([^}]+)\}")


def _operations() -> str:
    from hamlearn.loops.coverage import markdown

    return markdown()


MAKERS: dict[str, Callable[[], str]] = {
    "commands": commands.markdown,
    "configuration": configuration.markdown,
    "errors": error_index.markdown,
    "operations": _operations,
    **{f"benchmark {name}": make for name, make in benchmark_tables.TABLES.items()},
}


def filled(text: str) -> str:
    """A page with every mark replaced by what it names; a name that is not there raises `KeyError`."""
    text = MARK.sub(lambda mark: MAKERS[mark[1]](), text)
    return FIGURE.sub(lambda figure: benchmark_tables.figures()[figure[1]], text)


def on_pre_build(config: Any) -> None:
    """Called by MkDocs before it builds the site: ends it if the README shows other figures than the reports."""
    readme = Path(config.config_file_path).parent / "README.md"
    for name, (shown, measured) in benchmark_tables.stale(readme.read_text()).items():
        raise PluginError(
            f"README.md shows {shown} for {name!r}, and the newest report has {measured}: write that"
        )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    return filled(markdown)
