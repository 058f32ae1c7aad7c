"""The command that repeats the paper's experiments: reproduce."""

from __future__ import annotations

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Precision(StrEnum):
    """Floating-point types to compute in."""

    float32 = "float32"
    float64 = "float64"
    both = "both"


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
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out/reproduce"),
    seed: Annotated[int, typer.Option(help="Seed of the first weights and of the order of samples.")] = 0,
) -> None:
    """Repeat the paper's experiments: Hamiltonian Learning against SGD.

    Six models in four settings of torch.optim.SGD, each as output net, as
    state net, and where it is recurrent also split over both. Tables, loss
    and accuracy figures, curves and an HTML report go into OUT.

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
        )
        passed = study.reproduce(settings, out, jobs or -1)
    except KeyboardInterrupt:
        typer.secho("Stopped: nothing was written.", err=True)
        raise typer.Exit(130) from None
    if not passed:
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
