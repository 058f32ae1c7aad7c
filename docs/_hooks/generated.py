"""Writes the parts of the reference that come from the code: commands, configuration keys, operations, errors.

A page asks for one by a line `<!-- generated: NAME -->`; no second copy is kept by hand.
"""

import re
from collections.abc import Callable
from typing import Any

import commands
import configuration
import error_index

MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)


def _operations() -> str:
    from hamlearn.loops.coverage import markdown

    return markdown()


MAKERS: dict[str, Callable[[], str]] = {
    "commands": commands.markdown,
    "configuration": configuration.markdown,
    "errors": error_index.markdown,
    "operations": _operations,
}


def filled(text: str) -> str:
    """A page with every mark replaced by what it names."""
    return MARK.sub(lambda mark: MAKERS[mark[1]](), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    return filled(markdown)
