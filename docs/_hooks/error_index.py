"""The index of errors, read from the classes and their docstrings."""

import inspect

from hamlearn import errors
from hamlearn.checks import CheckFailedError
from hamlearn.loops import UnsupportedError
from hamlearn.reversible import GridOverflowError, RebuildError

OTHERS = (GridOverflowError, RebuildError, UnsupportedError, CheckFailedError)
"""Errors that live beside what raises them."""


def listed() -> list[type[Exception]]:
    """Every error that users can meet, in the order of their definition."""
    own = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    return [*own, *OTHERS]


def markdown() -> str:
    """A row for each: its name, what else it is, when it is raised, and what to do."""
    lines = ["| error | is also | raised when | what to do |", "| --- | --- | --- | --- |"]
    for error in listed():
        when, remedy = parts(error)
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        lines.append(f"| [`{error.__name__}`][{_home(error)}] | {bases} | {when} | {remedy} |")
    return "\n".join(lines)


def parts(error: type[Exception]) -> tuple[str, str]:
    """When an error is raised, and what to do: the first paragraph of its docstring and the one named so."""
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(error) or "").split("\n\n")]
    remedies = [part.removeprefix("What to do: ") for part in paragraphs if part.startswith("What to do: ")]
    if len(remedies) != 1:
        raise ValueError(f"the docstring of {error.__name__} says {len(remedies)} times what to do: say it once")
    return paragraphs[0], remedies[0]


def _home(error: type[Exception]) -> str:
    """Where the reference documents it."""
    public = {UnsupportedError: "hamlearn.loops", GridOverflowError: "hamlearn.reversible"}
    public |= {RebuildError: "hamlearn.reversible"}
    return f"{public.get(error, error.__module__)}.{error.__name__}"
