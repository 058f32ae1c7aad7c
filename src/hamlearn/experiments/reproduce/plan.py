"""What is run: every model of the paper in every scenario, by SGD and by each implementation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from hamlearn.errors import ConfigError
from hamlearn.experiments.models import EPOCHS, MODELS
from hamlearn.experiments.scenarios import SCENARIOS, Scenario

WORDS = 64
"""Length of reviews in float64, if that comes second to float32: whole ones would take an hour alone."""


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
        seed: Of the first weights and of the order of samples.

    Example:
        >>> Settings(models=("Linear",), epochs=5).epochs_of("Iris")
        5
        >>> Settings(models=("Lineal",))
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: models has 'Lineal': choose from Linear, MLP, ResNet, ViT, RNN, LSTM
    """

    source: str = "embedded"
    models: tuple[str, ...] = tuple(MODELS)
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    epochs: int | None = None
    precision: Literal["float32", "float64", "both"] = "both"
    seed: int = 0

    def __post_init__(self) -> None:
        _require_known("models", self.models, MODELS)
        _require_known("scenarios", self.scenarios, SCENARIOS)
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} would train nothing: give 1 or more, or None for the paper's")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Floating-point types in use."""
        return ("float32", "float64") if self.precision == "both" else (self.precision,)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the data sets, in the paper's order."""
        return tuple(name for name in EPOCHS if any(MODELS[model].data == name for model in self.models))

    @property
    def reduced(self) -> bool:
        """Whether some data set is shown less often than in the paper."""
        return any(self.epochs_of(name) < EPOCHS[name] for name in self.data)

    def is_second(self, dtype: str) -> bool:
        """Whether `dtype` only checks what the other one cannot."""
        return self.precision == "both" and dtype == "float64"

    def epochs_of(self, data: str) -> int:
        """Passes over the data set."""
        return EPOCHS[data] if self.epochs is None else self.epochs


@dataclass(frozen=True)
class TrainingJob:
    """A model trained in one way.

    Attributes:
        how: `"SGD"`, or how Hamiltonian Learning takes the model.
        length: Only so many words of each review; `None` for all.
        source: Where the data come from.
    """

    model: str
    scenario: Scenario
    how: str
    dtype: str
    epochs: int
    seed: int
    length: int | None
    source: str

    @property
    def data(self) -> str:
        """Name of the data set."""
        return MODELS[self.model].data

    @property
    def cell(self) -> tuple[str, str, str, str]:
        """Its place in the tables."""
        return self.model, self.scenario.name, self.how, self.dtype


def plan(settings: Settings) -> Iterator[TrainingJob]:
    """Every training run in the order of the tables, SGD before what is compared with it."""
    models = [model for model in MODELS.values() if model.name in settings.models]
    scenarios = [SCENARIOS[name] for name in SCENARIOS if name in settings.scenarios]
    for dtype, model, scenario in product(settings.dtypes, models, scenarios):
        second = settings.is_second(dtype)
        length = WORDS if second and model.data == "IMDb" else None
        epochs = settings.epochs_of(model.data)
        for how in ("SGD", *(how for how in model.implementations if how != "output" or not second)):
            yield TrainingJob(model.name, scenario, how, dtype, epochs, settings.seed, length, settings.source)


def _require_known(argument: str, names: tuple[str, ...], known: Iterable[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"has {unknown[0]!r}" if unknown else "is empty"
        raise ConfigError(f"{argument} {what}: choose from {', '.join(known)}")
