"""The command that runs the benchmarks, which are part of the sources and not of the installed package: bench."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hamlearn.errors import ConfigError, install

BENCHMARKS = (
    "step", "stream", "agents", "endless", "echo", "credit", "fair", "local", "memory", "overhead", "serve",
    "river", "streams", "forecast", "bundled", "defaults", "kills", "pipeline", "plasticity",
)  # fmt: skip
WITH_DEVICE = ("stream", "agents", "local", "memory")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which benchmarks, and after them options of the last one; without names, all."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the dated reports.")] = Path("benchmarks/results"),
    quick: Annotated[
        bool, typer.Option(metavar="", help="Small sizes: checks that it works, not how fast.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, for stream, agents, local and memory.")] = None,
) -> None:
    """Measure speed and memory, print tables, and write dated JSON reports.

    The benchmarks are step, stream, agents, endless, echo, credit, fair,
    local, memory, overhead, serve, river, streams, forecast, bundled, defaults,
    kills, pipeline and plasticity. Credit, fair, streams, forecast and
    plasticity have options of their own: hamlearn bench streams -- --help.

    The benchmarks are part of the sources, not of the installed package: run this in a clone of the repository.
    """
    chosen = list(itertools.takewhile(lambda name: not name.startswith("-"), names or BENCHMARKS))
    own = (names or [])[len(chosen) :]
    given: dict[str, Any] = {} if device is None else {"device": device}
    for name in chosen:
        if name not in BENCHMARKS:
            raise ConfigError(f"the benchmark {name!r} is not known: give one of {', '.join(BENCHMARKS)}")
        if device is not None and (device not in ("cpu", "cuda") or name not in WITH_DEVICE):
            raise ConfigError(
                f"--device {device!r} is not for {name}: give cpu or cuda for {', '.join(WITH_DEVICE)}"
            )
    _find_benchmarks()
    for name in chosen:
        try:
            benchmark = importlib.import_module(f"benchmarks.{name}")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the benchmark {name!r} needs {error.name}: {install('bench,experiments,river')}"
            ) from error
        if own and not hasattr(benchmark, "options"):
            raise ConfigError(f"{' '.join(own)}: the benchmark {name!r} has no options of its own")
        benchmark.run(out, quick=quick, **given, **(benchmark.options(own) if own else {}))


def _find_benchmarks() -> None:
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "__init__.py").is_file():
        raise ConfigError(
            "the benchmarks are not part of the installed package: clone the sources of hamlearn, install them "
            'with pip install -c constraints.txt -e ".[bench,experiments,river]", and run `hamlearn bench` there'
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
