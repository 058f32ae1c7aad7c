"""The command `hamlearn`: a file per group of commands, and the entry point, which turns errors into messages."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from hamlearn._version import __version__
from hamlearn.cli.measuring import bench
from hamlearn.cli.running import check, report, run, serve, watch
from hamlearn.cli.studies import reproduce
from hamlearn.errors import HamlearnError, install

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    help="Hamiltonian Learning: networks that compute and learn over time, forward only.\n\n"
    "Documentation: https://hamlearn.github.io/hamlearn/",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hamlearn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Print the version.")
    ] = False,
) -> None:
    pass


# In the order in which `hamlearn --help` lists them.
for _command in (run, serve, report, watch, reproduce):
    app.command()(_command)
# Unknown options are those of a benchmark.
app.command(context_settings={"ignore_unknown_options": True})(bench)
_config = typer.Typer(help="Look at configuration files.", no_args_is_help=True)
_config.command()(check)
app.add_typer(_config, name="config")


_REMEDIES = {
    errno.ENOSPC: "Free space on the disk, then run the same command again.",
    errno.EDQUOT: "Free space within your quota, then run the same command again.",
    errno.EFBIG: "Raise the limit on the size of files, or give a folder on another disk.",
    errno.EROFS: "Give a folder that can be written to, by --out.",
    errno.EACCES: "Give a folder that you may write to, by --out, or change its permissions.",
    errno.EPERM: "Give a folder that you may write to, by --out, or change its permissions.",
}

_EXTRAS = {
    "experiments": "sklearn matplotlib pooch requests joblib",
    "bench": "psutil torchdiffeq jax",
    "metrics": "torchmetrics",
    "river": "river",
    "tensorboard": "tensorboard",
    "mqtt": "paho",
    "redis": "redis",
    "websocket": "websockets",
    "serve": "starlette uvicorn httptools prometheus_client",
}
"""Libraries that hamlearn can do without, by the extra that brings them."""


def main() -> None:
    """Entry point: errors that hamlearn raises on purpose, and the system's, are one message and exit code 2."""
    try:
        app()
    except HamlearnError as error:
        _end(str(error), error)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        extra = next((extra for extra, names in _EXTRAS.items() if name in names.split()), None)
        if extra is None:
            raise
        _end(f"this needs {error.name}, which is not installed: {install(extra)}", error)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        _end(f"{error}. {remedy}".strip(), error)


def _end(message: str, error: Exception) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        # The output cannot be read any more: without this, Python would try again, and fail, when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    typer.secho(f"hamlearn: {message}", fg=typer.colors.RED, err=True)
    raise SystemExit(2) from error
