"""Commands that run, serve and show a learner: run, serve, report, watch."""

from __future__ import annotations

import importlib
import shlex
import signal
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer


def run(
    config: Annotated[Path, typer.Argument(help="A TOML file: stream, network, learner, records, checkpoints.")],
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Continue from the last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace the run that the folder contains.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder, instead of run.out.")] = None,
    progress: Annotated[bool, typer.Option(metavar="", help="Draw a progress bar.")] = True,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of this machine for Prometheus: GET /metrics.")
    ] = None,
) -> None:
    """Learn from a stream as a TOML file describes it, and write records, predictions and a report.

    A file like this is enough:

        stream = {kind = "csv", path = "orders.csv", target = "price"}

    Paths in the file are relative to its folder, and those of options to the
    working folder. `hamlearn config check CONFIG` looks for mistakes without
    running; every key is listed in the documentation, "Configuration files".

    On SIGTERM or Ctrl-C it saves what was learned; --resume continues there,
    bit-for-bit as if it had not been stopped.

    Exits with 2, and a message, for a mistake in the file, data that cannot be
    read, a folder that another run is using, or a disk that is full or not
    writable; with 130 after Ctrl-C, and with 143 after SIGTERM.
    """
    command = importlib.import_module("hamlearn.experiments.run").run
    try:
        result = command(config, resume, out, progress, overwrite, metrics_port)
        stopped = result.signal
    except KeyboardInterrupt:
        stopped = signal.SIGINT
    if stopped:
        again = ["hamlearn", "run", str(config), *([] if out is None else ["--out", str(out)]), "--resume"]
        typer.secho(f"Stopped. Continue from the last checkpoint: {shlex.join(again)}", err=True)
        raise typer.Exit(128 + stopped)
    typer.echo(result.summary())
    for warning in result.warnings:
        typer.secho(warning, fg=typer.colors.YELLOW, err=True)


def check(config: Annotated[Path, typer.Argument(help="A TOML file for `hamlearn run`.")]) -> None:
    """Check a file for `hamlearn run`: every key and value is checked, and everything is built; nothing runs.

    Exits with 2, and a message that names the key, its value and what is
    allowed, if there is a mistake.
    """
    typer.echo(f"{config} is right: {importlib.import_module('hamlearn.experiments.run').describe(config)}")


class LogFormat(StrEnum):
    """Formats of log lines."""

    text = "text"
    json = "json"


def serve(
    config: Annotated[Path, typer.Argument(help="A TOML file, or the folder of a finished run.")],
    host: Annotated[str | None, typer.Option(help="Address to listen at, instead of serve.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port, instead of serve.port; 0: any that is free.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; of a run, RUN/serve is the default.")
    ] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", metavar="", help="A proxy in front provides TLS and bounds connections."),
    ] = False,
    log: Annotated[LogFormat | None, typer.Option(help="Format of log lines, instead of serve.log.")] = None,
) -> None:
    """Serve a learner over HTTP: predictions at once, learning from targets, including those that arrive later.

    A file like this is enough:

        network.inputs = 4
        network.outputs = 1

    Then, from anywhere on this machine:

        curl 127.0.0.1:8000/predict
             -d '{"u": [0.1, 0.2, 0.3, 0.4], "target": [1.0], "id": "a-1"}'

    POST /predict takes one sample or a batch, returns predictions, and learns
    if there is a target; POST /label delivers targets later, by id; POST
    /evaluate moves nothing; GET /state, GET /metrics, GET /readyz; POST
    /checkpoint, POST /rollback; /openapi.json describes all of them.

    Only this machine can connect. For others, put a proxy with TLS in front,
    name files of tokens by serve.learn_tokens and serve.predict_tokens, and
    give --behind-proxy: examples/deploy has all of it.

    On SIGTERM or Ctrl-C it accepts nothing more, finishes what is waiting,
    writes a checkpoint, and exits with 0. Started again, it continues from
    the last checkpoint; GET /state says which sample that was, and samples
    that are sent again under their ids are learned once.

    Exits with 2, and a message, for a mistake in the file, a port or a folder
    in use, or a disk that cannot be written to.
    """

    def ready(address: str, service: Any) -> None:
        first = service.agents[""]
        typer.echo(f"Serving at {address}, from sample {first.journal.samples}. Stop with Ctrl-C.")

    given = {"host": host, "port": port, "log": log, "behind_proxy": behind_proxy or None}
    importlib.import_module("hamlearn.serve.server").serve(config, out, ready, **given)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `hamlearn run` wrote.")],
) -> None:
    """Write the HTML report of a run's records again."""
    typer.echo(importlib.import_module("hamlearn.experiments.run").report(folder))


def watch(
    folder: Annotated[Path, typer.Argument(help="A folder that `hamlearn run` writes to.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8765,
    host: Annotated[str, typer.Option(help="An address of this machine that others cannot reach.")] = "127.0.0.1",
) -> None:
    """Show a run as a page that updates while it runs: loss, norms, speed, samples that a feed left out."""
    with importlib.import_module("hamlearn.watch").watch(folder, host, port) as address:
        typer.echo(f"Watching {folder} at {address}, until Ctrl-C.")
        try:
            Event().wait()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
