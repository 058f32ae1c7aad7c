"""The command `hamlearn`, in this process or in one of its own."""

import re
import sys
from typing import Any

from typer.testing import CliRunner

from hamlearn.cli import app


def invoke(*arguments: object, **settings: Any) -> Any:
    """Run `hamlearn` with those arguments here."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **settings)


def command_line(*arguments: object) -> list[str]:
    """What starts `hamlearn` with those arguments as a process."""
    return [sys.executable, "-c", "from hamlearn.cli import main; main()", *map(str, arguments)]


def plain(text: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
