"""The command-line reference, read from the functions that are the commands."""

import enum
import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from typer.models import ArgumentInfo

from hamlearn.cli import app

WORDS = {str: "text", int: "a whole number", float: "a number", Path: "a path"}


class Parameter(NamedTuple):
    """One argument or option of a command, as words."""

    names: str
    takes: str
    default: str
    meaning: str
    argument: bool


def commands() -> dict[str, Callable[..., Any]]:
    """The function of each command, by its name."""
    found = {
        info.name or info.callback.__name__: info.callback for info in app.registered_commands if info.callback
    }
    for group in app.registered_groups:
        for info in group.typer_instance.registered_commands if group.typer_instance else ():
            if info.callback:
                found[f"{group.name} {info.name or info.callback.__name__}"] = info.callback
    return dict(sorted(found.items()))


def parameters(command: Callable[..., Any]) -> list[Parameter]:
    """What a command takes, in the order of its signature."""
    hints = typing.get_type_hints(command, include_extras=True)
    return [_parameter(name, hints[name], given) for name, given in inspect.signature(command).parameters.items()]


def markdown() -> str:
    """Every command with its help text, its arguments and its options."""
    callback = app.registered_callback
    parts = [str(app.info.help)]
    if callback is not None and callback.callback is not None:
        parts.append(_table("hamlearn", parameters(callback.callback)))
    for name, command in commands().items():
        taken = parameters(command)
        words = [f"hamlearn {name}", *(_word(one) for one in taken if one.argument), "[OPTIONS]"]
        parts += [f"## hamlearn {name}", inspect.getdoc(command) or "", f"```sh\n{' '.join(words)}\n```"]
        parts.append(_table(f"hamlearn {name}", taken))
    return "\n\n".join(parts)


def _word(argument: Parameter) -> str:
    word = argument.names.strip("`")
    return word if argument.default == "required" else f"[{word} ...]"


def _table(name: str, taken: list[Parameter]) -> str:
    lines = [f"| argument or option of `{name}` | takes | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.names} | {one.takes} | {one.default} | {one.meaning} |" for one in taken]
    return "\n".join(lines)


def _parameter(name: str, hint: Any, given: inspect.Parameter) -> Parameter:
    kind, info = typing.get_args(hint)
    argument = isinstance(info, ArgumentInfo)
    kind, many = _kind(kind)
    if argument:
        names = [name.upper()]
    else:
        said = f"--{name.replace('_', '-')}"
        # Within `Annotated`, typer keeps the first name that is given in the place of the default.
        given_names = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
        names = given_names or ([said, f"--no-{said[2:]}"] if kind is bool else [said])
    if kind is bool:
        takes = "no value"
    elif issubclass(kind, enum.Enum):
        takes = ", ".join(f"`{choice.value}`" for choice in kind)
    else:
        takes = WORDS[kind]
    takes += ("; several may be given" if argument else "; may be repeated") if many else ""
    meaning = (info.help or "").replace("|", "\\|")
    return Parameter(", ".join(f"`{one}`" for one in names), takes, _default(given, info), meaning, argument)


def _kind(kind: Any) -> tuple[type, bool]:
    """The type of one value, and whether there may be several."""
    if isinstance(kind, types.UnionType):
        (kind,) = [part for part in kind.__args__ if part is not type(None)]
    if typing.get_origin(kind) is list:
        return typing.get_args(kind)[0], True
    return kind, False


def _default(given: inspect.Parameter, info: Any) -> str:
    if given.default is inspect.Parameter.empty:
        return "required"
    if isinstance(info.show_default, str):
        return info.show_default
    if given.default is None:
        return ""
    if isinstance(given.default, bool):
        return "on" if given.default else "off"
    return f"`{getattr(given.default, 'value', given.default)}`"
