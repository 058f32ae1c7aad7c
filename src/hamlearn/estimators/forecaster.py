"""A series, forecast for all steps of a horizon at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError, SampleError
from hamlearn.estimators.encoder import is_number
from hamlearn.estimators.mixing import LEVELS, NumberMixer, level_of
from hamlearn.estimators.pipeline import bound, loops
from hamlearn.estimators.saving import Saving, checked_seed
from hamlearn.estimators.series import GUESSES, INPUTS, Series
from hamlearn.estimators.team import Member, Team
from hamlearn.loops.bound import Tensors

MEMBERS = (
    Member("", (), "sgd", 0.003),
    Member("", (), "sgd", 0.0005),
    Member("", (64,), "rms", 0.001),
    Member("", (64,), "rms", 0.0002),
    Member("", (64, 32), "rms", 0.0003),
)
PACE = 2.0
"""Errors of forecasts many steps ahead resemble each other: beyond this step they count less and less."""
LOOK = 256
"""Values from one look at the networks to the next."""


class PerStep(nn.Module):
    """A linear output for each row, with weights of its own: row k is what is known for step k.

    Args:
        in_features: Columns.
        rows: Rows.
    """

    def __init__(self, in_features: int, rows: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.weight = nn.Parameter(torch.zeros(rows, in_features))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, x: Tensor) -> Tensor:
        """One number for each row."""
        return (x * self.weight).sum(-1) + self.bias


def loss(y: Tensor, target: Tensor) -> Tensor:
    """Huber's loss of all networks at the steps whose value was forecast; the second row says which those are."""
    return (nn.functional.huber_loss(y, target[0].expand_as(y), reduction="none") * target[1]).sum()


class Forecaster(Saving):
    """Forecasts a series for all steps of a horizon, with nothing else to set.

    A few networks and simple guesses (no change, the mean, the value and the change of a season ago) forecast each
    step directly: no forecast is fed back. When a value arrives, all forecasts of it are learned from, each with
    the inputs from which it was made, and judged by what was forecast then. Seasons are found on line.

    Args:
        horizon: Steps ahead.
        seed: Of the first weights.

    Example:
        >>> import math
        >>> import hamlearn as hl
        >>> model = hl.estimators.Forecaster(12)
        >>> model.learn_many([math.sin(hour * math.pi / 12) for hour in range(600)])
        >>> bool(abs(model.forecast()[5] - math.sin(605 * math.pi / 12)) < 0.1)
        True
        >>> model
        Forecaster(horizon=12, seed=0, 600 values learned)
    """

    kind = "forecaster"

    def __init__(self, horizon: int, seed: int = 0) -> None:
        if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
            raise ConfigError(f"horizon={horizon!r} must be a whole number of steps, 1 or more")
        self.horizon, self.seed = horizon, checked_seed(seed)
        self._series = Series(horizon)
        self._nets = StepNets(horizon, self.seed)
        # Inputs and forecasts when each of the latest values had come; the oldest is overwritten.
        rows, steps, width = horizon, horizon, INPUTS
        self._inputs = np.zeros((rows, steps, width), dtype=np.float32)
        self._guesses = np.zeros((rows, steps, GUESSES), dtype=np.float32)
        self._outputs = np.zeros((rows, len(MEMBERS), steps), dtype=np.float32)
        self._from = np.ones((rows, 1 + steps))  # the value, and the scale of each step
        self._answer = np.zeros((1 + len(LEVELS), steps))

    def __repr__(self) -> str:
        return f"Forecaster(horizon={self.horizon}, seed={self.seed}, {self._series.count:,} values learned)"

    @property
    def seasons(self) -> list[int]:
        """Lengths of the seasons that were found, shortest first."""
        return sorted({int(season) for season in self._series.seasons if season})

    def learn_one(self, y: float) -> None:
        """Learn the next value of the series, and forecast those after it."""
        if not is_number(y) or not math.isfinite(y):
            raise SampleError(f"y={y!r} must be a finite number")
        value = float(y)
        if self._series.count:
            self._learn(value)
        self._series.add(value)
        self._forecast(value)

    def learn_many(self, y: Sequence[float] | np.ndarray) -> None:
        """Learn many values, in order."""
        for value in np.asarray(y).tolist():
            self.learn_one(value)

    def forecast(self) -> np.ndarray:
        """The next values, one for each step of the horizon; nothing moves."""
        return self._answer[0].copy()

    def forecast_interval(self, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of intervals that hold each value with this probability.

        Args:
            coverage: 0.5, 0.8, 0.9, 0.95 or 0.99.
        """
        half = self._answer[1 + level_of(coverage)]
        return self._answer[0] - half, self._answer[0] + half

    def forecast_then_learn(self, y: Sequence[float] | np.ndarray) -> np.ndarray:
        """Test-then-train: for each value the forecasts of it and those after it, from before it was learned."""
        out = np.zeros((len(y), self.horizon))
        for place, value in enumerate(np.asarray(y).tolist()):
            out[place] = self._answer[0]
            self.learn_one(value)
        return out

    def _learn(self, value: float) -> None:
        """Learn from all forecasts of this value: step k is that of k values ago."""
        nets, steps = self._nets, np.arange(self.horizon)
        places = (self._series.count - 1 - steps) % self.horizon
        nets.inputs[:] = self._inputs[places, steps]
        nets.guesses[:] = self._guesses[places, steps]
        change = (value - self._from[places, 0]) / self._from[places, 1 + steps]
        nets.target[0] = np.clip(change, -10.0, 10.0)
        nets.target[1] = steps < self._series.count
        nets.outputs[:] = self._outputs[places, :, steps].T
        nets.learn()
        if not self._series.count % LOOK:
            nets.look()

    def _forecast(self, value: float) -> None:
        series, nets = self._series, self._nets
        place = (series.count - 1) % self.horizon
        scale = series.scale(np.arange(1, self.horizon + 1))
        self._from[place] = [value, *scale]
        self._inputs[place], self._guesses[place] = series.encoded()
        nets.inputs[:], nets.guesses[:] = self._inputs[place], self._guesses[place]
        answer, self._outputs[place] = nets.answer()
        self._answer = answer * scale
        self._answer[0] += value

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays = {
            "values": self._series.values,
            "spread": self._series.spread,
            "seasons": self._series.seasons,
            "inputs": self._inputs,
            "guesses": self._guesses,
            "outputs": self._outputs,
            "from": self._from,
            "answer": self._answer,
        }
        about = {"estimator": self.kind, "horizon": self.horizon, "seed": self.seed, "count": self._series.count}
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | self._nets.tensors(), about

    def _take(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        self._require_kind(about)
        made = type(self)(about["horizon"], about["seed"])
        own, _ = made._parts()
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        made._series.count = about["count"]
        self.__dict__.update(made.__dict__)


class StepNets:
    """Networks and guesses for all steps of a horizon, and their mixture: two compiled loops.

    Attributes:
        inputs: Inputs of each step, to be written to.
        guesses: Simple forecasts likewise.
        target: The change that came, and whether it was forecast, likewise.
        outputs: What the networks forecast then, likewise.
    """

    def __init__(self, horizon: int, seed: int) -> None:
        self._team = Team(MEMBERS, [(0, INPUTS)] * len(MEMBERS), horizon, seed, head=PerStep)
        self._mixer = NumberMixer(len(MEMBERS) + GUESSES - 1)
        self._pace = 1 / (1 + torch.arange(horizon) / PACE)
        self._mix = [tensor.expand(horizon, *tensor.shape).clone() for tensor in self._mixer.carry]
        shapes = [(horizon, INPUTS), (2, horizon), (len(MEMBERS), horizon), (horizon, GUESSES)]
        first = loops.get(("steps", horizon, "learn"))
        samples = [torch.zeros(1, *shape) for shape in shapes] if first is None else first.samples
        self.inputs, self.target, self.outputs, self.guesses = (sample[0].numpy() for sample in samples)
        carry = [*self._mix, *self._team.carry]
        self._learn = bound(("steps", horizon, "learn"), self._learned, carry, samples, [])
        asked = [samples[0], samples[3]]
        self._answer = bound(("steps", horizon, "answer"), self._answered, [], asked, carry)

    def learn(self) -> None:
        """Learn from what is written; the mixture judges what the networks answered when they forecast."""
        self._learn(1)

    def answer(self) -> tuple[np.ndarray, np.ndarray]:
        """Forecast and half widths of each step, in units of its scale; and the outputs of all networks."""
        answer, outputs = (result[0].numpy() for result in self._answer(1))
        return answer, outputs

    def _learned(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        inputs, target, outputs, guesses = sample
        mix, team = list(carry[: len(self._mix)]), carry[len(self._mix) :]
        new_team, _ = self._team.step(team, inputs, target, loss)
        step = lambda *given: self._mixer.step(*given)[0]  # noqa: E731
        moved = torch.func.vmap(step)(mix, *_experts(outputs, guesses), target[0], self._pace)
        was_forecast = target[1] > 0.5
        shaped = [was_forecast.reshape(-1, *[1] * (tensor.dim() - 1)) for tensor in mix]
        new_mix = [torch.where(here, after, old) for here, after, old in zip(shaped, moved, mix, strict=True)]
        return [*new_mix, *new_team], []

    def _answered(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        inputs, guesses = sample
        mix, team = list(constants[: len(self._mix)]), constants[len(self._mix) :]
        outputs = self._team.answer(team, inputs)
        _, _, answer = torch.func.vmap(self._mixer.answer)(mix, *_experts(outputs, guesses))
        half = mix[-1][:, :-1] * mix[-1][:, -1:]
        return [], [torch.cat([answer[None], half.T]), outputs]

    @torch.no_grad()
    def look(self) -> None:
        """Networks that have diverged, or fallen far behind the guess that nothing changes, begin again."""
        errors = self._mix[2].mean(0)
        usual = float(errors[len(MEMBERS) + GUESSES - 1])
        judged = [self._team.sound(at) and float(errors[at]) < 4 * usual + 1 for at in range(len(MEMBERS))]
        for index in (at for at, good in enumerate(judged) if not good):
            ranking = errors[: len(MEMBERS)].argsort().tolist()
            self._team.restart(index, [other for other in ranking if judged[other]])
            for step in range(len(self._mix[0])):
                self._mixer.carry = [tensor[step] for tensor in self._mix]
                self._mixer.forget(index)

    def tensors(self) -> dict[str, Tensor]:
        """All that moves, by name; these are the tensors themselves."""
        found = {f"mix.{index}": tensor for index, tensor in enumerate(self._mix)}
        return found | {f"team.{name}": tensor for name, tensor in self._team.named.items()}


def _experts(outputs: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the mixer takes for each step: networks and guesses, the last value of its season, and a range."""
    experts = torch.cat([outputs.T, guesses[:, :1], guesses[:, 2:]], 1)
    reach = torch.tensor([-10.0, 10.0]).expand(len(guesses), 2)
    return experts, guesses[:, 1:2], reach
