"""Lets the API pages show the `Example:` part of a docstring as code.

Griffe reads the heading `Examples:` only, and takes the singular for a note in prose, where `>>>` is a quotation.
"""

import re
from typing import Any

import griffe

HEADING = re.compile(r"^Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Gives each docstring the heading that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the heading of one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub("Examples:", obj.docstring.value)
