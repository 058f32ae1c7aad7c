"""The command that runs the benchmarks, which are part of the sources and not of the installed package: bench."""

from __future__ import annotations

import importlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hamlearn.errors import ConfigError, install


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
    seeds: Annotated[
        int | None, typer.Option(help="For credit: how many runs a score is the mean of; three if not given.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(help="For credit: Adam's rates instead of the grid; may be repeated.")
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
    options = {
        "tasks": task or (),
        "rules": rule or (),
        "seeds": seeds,
        "rates": rate or (),
        "braintrace": braintrace,
    }
    if any(option not in ((), None) for option in options.values()) and chosen != [Benchmark.credit]:
        raise ConfigError("--task, --rule, --seeds, --rate and --braintrace are for credit: hamlearn bench credit")
    _find_benchmarks()
    for name in chosen:
        try:
            benchmark = importlib.import_module(f"benchmarks.{name.value}")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the benchmark {name.value!r} needs {error.name}: {install('bench,experiments,river')}"
            ) from error
        given: dict[str, Any] = {} if device is None else {"device": device}
        benchmark.run(out, quick=quick, **given, **(options if name is Benchmark.credit else {}))


def _find_benchmarks() -> None:
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "__init__.py").is_file():
        raise ConfigError(
            "the benchmarks are not part of the installed package: clone the sources of hamlearn, install them by "
            'pip install -c constraints.txt -e ".[bench,experiments,river]", and run `hamlearn bench` there'
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
