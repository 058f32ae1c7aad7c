"""The command `hamlearn`."""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hamlearn._version import __version__
from hamlearn.errors import ConfigError, HamlearnError

app = typer.Typer(
    no_args_is_help=True,
    help="Hamiltonian Learning: networks that compute and learn over time, forward only.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hamlearn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class Precision(StrEnum):
    """Floating-point types to compute in."""

    float32 = "float32"
    float64 = "float64"
    both = "both"


class Benchmark(StrEnum):
    """What can be measured."""

    step = "step"
    stream = "stream"
    agents = "agents"
    endless = "endless"
    echo = "echo"
    credit = "credit"
    local = "local"
    memory = "memory"
    overhead = "overhead"
    serve = "serve"
    river = "river"
    defaults = "defaults"
    kills = "kills"
    pipeline = "pipeline"


@app.command()
def reproduce(
    data: Annotated[
        str,
        typer.Option(
            help="embedded: data that need no download; official: downloaded once; or a folder that holds "
            "mnist/, imdb/ and glove/."
        ),
    ] = "embedded",
    models: Annotated[
        str, typer.Option(help="Which models, separated by commas.")
    ] = "Linear,MLP,ResNet,ViT,RNN,LSTM",
    scenarios: Annotated[
        str, typer.Option(help="Which settings of SGD, separated by commas.")
    ] = "GD-a,GD-b,Mom-a,Mom-b",
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over each data set.", show_default="the paper's: 40, and 80 for IMDb"),
    ] = None,
    dtype: Annotated[
        Precision,
        typer.Option(
            help="Floating-point type. both: float32 for everything, and float64 for state nets, with reviews "
            "cut to 64 words."
        ),
    ] = Precision.both,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes, of one thread each.", show_default="one per core")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; finished runs in it are not repeated.")] = Path(
        "out/reproduce"
    ),
    seed: Annotated[int, typer.Option(help="Seed of initial weights, orders of samples and drawn settings.")] = 0,
    extension: Annotated[
        bool, typer.Option(help="Go beyond the paper: settings drawn at random, sequences token by token.")
    ] = True,
) -> None:
    """Repeat the paper's experiments: Hamiltonian Learning against SGD.

    Six models in four settings of torch.optim.SGD, each as output net, as
    state net, and where it is recurrent also split over both. Tables, loss
    and accuracy figures, raw curves and an HTML report go into OUT. If it is
    stopped at any moment, the same command continues where it was.

    Exits with 1 if a cell misses its bound, and says which: |Δθ| must be
    exactly 0 for output nets in float32, at most 1e-10 for the others in
    float64.

    A quick look: hamlearn reproduce --models Linear,MLP --epochs 5
    """
    try:
        study = importlib.import_module("hamlearn.experiments.reproduce")
        settings = study.Settings(
            source=data,
            models=_names(models),
            scenarios=_names(scenarios),
            epochs=epochs,
            precision=dtype.value,
            seed=seed,
            extension=extension,
        )
        passed = study.reproduce(settings, out, jobs or _cores())
    except KeyboardInterrupt:
        typer.secho(f"Interrupted. What is finished is in {out}: the same command goes on from there.", err=True)
        raise typer.Exit(130) from None
    if not passed:
        raise typer.Exit(1)


@app.command()
def bench(
    names: Annotated[
        list[Benchmark] | None, typer.Argument(help="Which benchmarks; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the dated reports.")] = Path("benchmarks/results"),
    quick: Annotated[bool, typer.Option(help="Small sizes: checks that it works, not how fast.")] = False,
    device: Annotated[
        str | None, typer.Option(help="'cpu' or 'cuda', for stream, agents, local and memory.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="For credit: which task, such as recall-40; may be repeated.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="For credit: which rule, such as sensitivity; may be repeated.")
    ] = None,
    braintrace: Annotated[
        Path | None,
        typer.Option(help="For credit: a Python interpreter with braintrace installed, to compare with."),
    ] = None,
) -> None:
    """Measure speed and memory, print tables, and write dated JSON reports.

    The benchmarks are part of the sources, not of the installed package: run this in a clone of the repository.
    """
    chosen = names or list(Benchmark)
    _require_device(chosen, device)
    options = {"tasks": task or (), "rules": rule or (), "braintrace": braintrace}
    if any(options.values()) and chosen != [Benchmark.credit]:
        raise ConfigError("--task, --rule and --braintrace are for credit alone: hamlearn bench credit")
    _find_benchmarks()
    for name in chosen:
        try:
            benchmark = importlib.import_module(f"benchmarks.{name.value}")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the benchmark {name.value!r} needs {error.name}: pip install 'hamlearn[bench,experiments,river]'"
            ) from error
        given: dict[str, Any] = {} if device is None else {"device": device}
        benchmark.run(out, quick=quick, **given, **(options if name is Benchmark.credit else {}))


def _find_benchmarks() -> None:
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "__init__.py").is_file():
        raise ConfigError(
            "the benchmarks are not part of the installed package: clone the sources of hamlearn, install them by "
            "pip install -e '.[bench,experiments,river]', and run `hamlearn bench` there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _require_device(names: list[Benchmark], device: str | None) -> None:
    if device is None:
        return
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device!r} is not known: give 'cpu' or 'cuda'")
    others = [name.value for name in names if name.value not in ("stream", "agents", "local", "memory")]
    if others:
        raise ConfigError(f"--device is for stream, agents, local and memory; {others[0]!r} runs on the CPU alone")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file: stream, network, learner, records, checkpoints.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that the folder contains.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder, instead of run.out.")] = None,
    progress: Annotated[bool, typer.Option(help="Draw a progress bar.")] = True,
) -> None:
    """Run a stream, a network and a learner from one file; a run that was stopped resumes to the bit.

    Exits with 2, and a message, for a mistake in the file, data that cannot be
    read, a folder that another run is using, or a disk that is full or not
    writable; with 130 if it was interrupted.
    """
    try:
        result = importlib.import_module("hamlearn.experiments.run").run(config, resume, out, progress, overwrite)
    except KeyboardInterrupt:
        again = ["hamlearn", "run", str(config), *([] if out is None else ["--out", str(out)]), "--resume"]
        typer.secho(f"Interrupted. Go on from the last checkpoint: {shlex.join(again)}", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{result.steps} samples, {result.scores}, in {result.folder}")
    if result.diverging is not None:
        typer.secho(
            f"Diverging since sample {result.diverging}: the loss is worse than at the start, and the weights "
            "grow. Lower hyper.beta (or hyper.lr), or set stream.standardize = true.",
            fg=typer.colors.YELLOW,
            err=True,
        )


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="A TOML file: network, loss, hyper, learner, serve.")],
    host: Annotated[str | None, typer.Option(help="Address to listen at, instead of serve.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port, instead of serve.port; 0: any that is free.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for checkpoints, instead of run.out.")] = None,
) -> None:
    """Serve a learner over HTTP: predictions at once, learning from targets, including those that arrive later.

    A file like this is enough:

        network.inputs = 4
        network.outputs = 1

    Then, from anywhere on this machine:

        curl 127.0.0.1:8000/predict -H 'content-type: application/json'
             -d '{"u": [0.1, 0.2, 0.3, 0.4], "target": [1.0], "id": "a-1"}'

    POST /predict takes one sample or a batch, returns predictions, and learns
    where there is a target; POST /label delivers targets later, by id; GET
    /state, GET /metrics, POST /checkpoint; a WebSocket at /stream; /docs
    describes all of them.

    Only this machine can connect. For others, set HAMLEARN_TOKEN and give
    --host; they send 'Authorization: Bearer TOKEN'. Use TLS then
    (serve.tls_cert, serve.tls_key), or a proxy that does.

    On SIGTERM or Ctrl-C it accepts nothing more, finishes what is waiting,
    writes a checkpoint, and exits with 0. Started again, it continues from
    the last checkpoint; GET /state says which sample that was, and samples
    that are sent again under their ids are learned once.

    Exits with 2, and a message, for a mistake in the file, a port or a folder
    in use, or a disk that cannot be written to.
    """

    def ready(address: str, service: Any) -> None:
        first = service.agents.get("")
        typer.echo(f"Serving at {address}, from sample {first.journal.samples}. Stop with Ctrl-C.")

    importlib.import_module("hamlearn.serve.server").serve(config, host, port, out, ready)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `hamlearn run` wrote.")],
) -> None:
    """Write the HTML report of a run's records again."""
    typer.echo(importlib.import_module("hamlearn.experiments.run").report(folder))


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="A folder that `hamlearn run` writes to.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8765,
    host: Annotated[str, typer.Option(help="An address of this machine that others cannot reach.")] = "127.0.0.1",
) -> None:
    """Show a run as a page that updates while it runs: loss, norms, speed, samples that a feed left out."""
    with importlib.import_module("hamlearn.watch").watch(folder, host, port) as server:
        typer.echo(f"Watching {folder} at {server.address}, until Ctrl-C.")
        try:
            server.ended.wait()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@app.command()
def locality(
    out: Annotated[Path, typer.Option(help="Folder for results and figure.")] = Path("out/locality"),
    data: Annotated[
        Path | None, typer.Option(help="Folder that holds mnist/*.gz; without it, digits only.")
    ] = None,
    one_pass: Annotated[
        int | None, typer.Option(help="Instead: one pass over MNIST by a chain of this many layers.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A few hundred samples: checks that it works.")] = False,
) -> None:
    """Measure accuracy against groups, hold and alignment: what locality costs, and what it gains."""
    from rich.console import Console
    from rich.table import Table

    study = importlib.import_module("hamlearn.experiments.locality")
    if one_pass is not None and data is None:
        raise typer.BadParameter("--one-pass reads MNIST: give --data, a folder that holds mnist/*.gz")
    if one_pass is not None and data is not None:
        found = {"MNIST, one pass": study.one_pass(out, data / "mnist", one_pass)["rows"]}
    else:
        found = study.run(out, None if data is None else data / "mnist", quick)
    for name, rows in found.items():
        table = Table("setting", "rate", "while learning", "on new samples", title=name)
        for row in rows:
            table.add_row(row["label"], f"{row['lr']:g}", f"{row['online']:.2%}", f"{row['test']:.2%}")
        Console().print(table)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_REMEDIES = {
    errno.ENOSPC: "Make room on the disk, then run the same command again.",
    errno.EDQUOT: "Make room within your quota, then run the same command again.",
    errno.EFBIG: "Raise the limit on the size of files, or give a folder on another disk.",
    errno.EROFS: "Give a folder that can be written to, by --out.",
    errno.EACCES: "Give a folder that you may write to, by --out, or change its permissions.",
    errno.EPERM: "Give a folder that you may write to, by --out, or change its permissions.",
}


_EXTRAS = {
    "sklearn": "experiments",
    "matplotlib": "experiments",
    "requests": "experiments",
    "urllib3": "experiments",
    "platformdirs": "experiments",
    "psutil": "bench",
    "torchdiffeq": "bench",
    "jax": "bench",
    "torchmetrics": "metrics",
    "river": "river",
    "tensorboard": "tensorboard",
    "paho": "mqtt",
    "redis": "redis",
    "websockets": "websocket",
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "msgpack": "serve",
    "prometheus_client": "serve",
}
"""What brings a library that hamlearn can do without: `pip install 'hamlearn[…]'`."""


def main() -> None:
    """Entry point: errors that hamlearn raises on purpose, and the system's, are one message and exit code 2."""
    try:
        app()
    except HamlearnError as error:
        _end(str(error), error)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _end(f"this needs {error.name}, which is not installed: pip install 'hamlearn[{extra}]'", error)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        _end(f"{error}. {remedy}".strip(), error)


def _end(message: str, error: Exception) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        # Nobody can read what is printed: without this, Python would try again, and fail, when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    typer.secho(f"hamlearn: {message}", fg=typer.colors.RED, err=True)
    raise SystemExit(2) from error
