"""What is to be run: the paper's cells, and the extension beyond it, as a list of training runs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from hamlearn.errors import ConfigError
from hamlearn.experiments.data import Dataset
from hamlearn.experiments.models import EPOCHS, MODELS, TOKEN_MODELS, Model
from hamlearn.experiments.reproduce.job import Job, Part
from hamlearn.experiments.scenarios import SCENARIOS, Scenario

Precision = Literal["float32", "float64", "both"]
DRAWS = 4
"""Random settings of the optimizer for each model of the extension."""
WORDS = 64
"""Where float64 comes second to float32, reviews are cut to so many words: whole ones would take an hour alone."""
_SHORT = {"samples": 20, "length": 30}
_FEW_EPOCHS = 3


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Args:
        source: `"embedded"`, `"official"`, or a folder that holds `mnist/`, `imdb/` and `glove/`.
        models: Names of `MODELS`.
        scenarios: Names of `SCENARIOS`.
        epochs: Passes over each data set; `None` for the paper's.
        precision: `"float32"` or `"float64"`, for everything; or `"both"`: float32 for everything, and float64 for
            the implementations whose bound is stated in float64, with reviews cut to `WORDS` words.
        seed: Of starts, orders of samples and drawn settings.
        extension: Whether to go beyond the paper: drawn settings, and sequences read token by token.

    Example:
        >>> Settings(models=("Linear",), epochs=5).epochs_of("Iris")
        5
        >>> Settings(models=("Lineal",))
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: there is no model 'Lineal': choose from Linear, MLP, ResNet, ViT, RNN, LSTM
    """

    source: str = "embedded"
    models: tuple[str, ...] = tuple(MODELS)
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    epochs: int | None = None
    precision: Precision = "both"
    seed: int = 0
    extension: bool = True

    def __post_init__(self) -> None:
        _check("model", self.models, MODELS)
        _check("scenario", self.scenarios, SCENARIOS)
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} would train nothing: give 1 or more, or None for the paper's")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Floating-point types in use."""
        return ("float32", "float64") if self.precision == "both" else (self.precision,)

    @property
    def reduced(self) -> bool:
        """Whether some data set is shown less often than in the paper."""
        return any(self.epochs_of(name) < EPOCHS[name] for name in self.data)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the data sets, in the paper's order."""
        return tuple(name for name in EPOCHS if any(MODELS[model].data == name for model in self.models))

    def second(self, dtype: str) -> bool:
        """Whether `dtype` is there only to check what the other one cannot."""
        return self.precision == "both" and dtype == "float64"

    def epochs_of(self, data: str) -> int:
        """Passes over the data set."""
        return EPOCHS[data] if self.epochs is None else self.epochs


def plan(settings: Settings, data: Mapping[tuple[str, str], Dataset]) -> list[Job]:
    """Every training run, in the order of the tables; SGD before what is compared with it.

    Args:
        settings: What to reproduce.
        data: Data sets by name and dtype.
    """
    jobs = list(_paper(settings))
    if settings.extension:
        jobs += [*_drawn(settings), *_tokens(settings)]
    return [job.on(data[job.data, job.dtype]) for job in jobs]


def draws(seed: int, name: str) -> list[Scenario]:
    """Settings of SGD and time steps drawn from `seed`, others for each `name`.

    Example:
        >>> one, *_ = draws(0, "MLP")
        >>> one.name, 0.001 <= one.lr <= 0.1, one == draws(0, "MLP")[0]
        ('draw 1', True, True)
    """
    dice = random.Random(f"{seed} {name}")
    return [
        Scenario(
            f"draw {k}",
            lr=float(f"{10 ** dice.uniform(-3, -1):.2g}"),
            momentum=round(dice.uniform(0.05, 0.9), 2),
            dampening=round(dice.uniform(0.05, 0.9), 2),
            tau=float(f"{2 ** dice.uniform(-3, 1):.2g}"),
        )
        for k in range(1, DRAWS + 1)
    ]


def _paper(settings: Settings) -> Iterator[Job]:
    scenarios = [SCENARIOS[name] for name in SCENARIOS if name in settings.scenarios]
    for dtype, name in product(settings.dtypes, _in_order(settings.models)):
        model = MODELS[name]
        second = settings.second(dtype)
        implementations = [how for how in model.implementations if how != "output" or not second]
        epochs = settings.epochs_of(model.data)
        length = WORDS if second and model.data == "IMDb" else None
        yield from _jobs("paper", model, scenarios, implementations, dtype, epochs, settings, length=length)


def _drawn(settings: Settings) -> Iterator[Job]:
    for dtype, name in product(settings.dtypes, _in_order(settings.models)):
        model = MODELS[name]
        drawn = draws(settings.seed, name)
        yield from _jobs("drawn", model, drawn, model.implementations, dtype, _FEW_EPOCHS, settings, **_SHORT)


def _tokens(settings: Settings) -> Iterator[Job]:
    for dtype, name in product(settings.dtypes, _in_order(settings.models)):
        if name in TOKEN_MODELS:
            model = TOKEN_MODELS[name]
            drawn = draws(settings.seed, f"{name}, token by token")
            yield from _jobs("tokens", model, drawn, model.implementations, dtype, _FEW_EPOCHS, settings, **_SHORT)


def _jobs(
    part: Part,
    model: Model,
    scenarios: Iterable[Scenario],
    implementations: Iterable[str],
    dtype: str,
    epochs: int,
    settings: Settings,
    samples: int | None = None,
    length: int | None = None,
) -> Iterator[Job]:
    for scenario, how in product(scenarios, ("SGD", *implementations)):
        yield Job(
            part,
            model.name,
            scenario,
            how,
            dtype,
            epochs,
            settings.seed,
            settings.source,
            model.data,
            samples,
            length,
        )


def _in_order(models: tuple[str, ...]) -> list[str]:
    return [name for name in MODELS if name in models]


def _check(kind: str, names: tuple[str, ...], known: Iterable[str]) -> None:
    if not names:
        raise ConfigError(f"no {kind} was named: choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {kind} {name!r}: choose from {', '.join(known)}")
