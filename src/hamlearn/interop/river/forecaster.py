"""Forecasts of a series, with or without further features."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import torch
from river.time_series.base import Forecaster
from torch.nn import functional

from hamlearn.errors import ConfigError
from hamlearn.interop.river.core import Core
from hamlearn.interop.river.encoding import Encoder, Standard

_CLIP = 5.0
"""Typical changes beyond which one counts no more: a broken sensor must not undo what was learned."""


class HLForecaster(Forecaster):
    """A network that learns how a series goes on by Hamiltonian Learning, as a River forecaster.

    It sees the last `lags` changes of the series, in units of their mean size, and learns the next change by the
    Huber loss, which lets no jump pull at full weight. Before it has learned, it forecasts that nothing changes.

    Args:
        lags: Past changes that it sees.
        net: `"linear"` or `"mlp"`.
        hidden: Neurons.
        beta: β.
        eta: η.
        tau: τ of values without time stamp.
        unit: What counts as one unit of time, in the unit of `t` (seconds, for datetimes).
        capacity: Places for further features.
        seed: Of the weights.

    Example:
        >>> import math
        >>> model = HLForecaster(lags=4, net="linear")
        >>> for k in range(1000):
        ...     model.learn_one(math.sin(k / 5))
        >>> abs(model.forecast(3)[2] - math.sin(1002 / 5)) < 0.1
        True
    """

    def __init__(
        self,
        lags: int = 8,
        net: str = "mlp",
        hidden: int = 16,
        beta: float = 0.01,
        eta: float = 1.0,
        tau: float = 1.0,
        unit: float = 1.0,
        capacity: int = 16,
        seed: int = 0,
    ) -> None:
        if lags < 1:
            raise ConfigError(f"lags={lags} sees no past. Give 1 or more.")
        if net not in ("linear", "mlp"):
            raise ConfigError(f'net={net!r} is not known. Give "linear" or "mlp": the past comes in by lags.')
        self.lags, self.net, self.hidden = lags, net, hidden
        self.beta, self.eta, self.tau, self.unit = beta, eta, tau, unit
        self.capacity, self.seed = capacity, seed
        self._encoder = Encoder(capacity)
        self._size = Standard()
        self._past: deque[float] = deque(maxlen=lags + 1)
        rates = (tau, eta, beta)
        self._core = Core((lags + capacity, 1), functional.huber_loss, net, hidden, rates, unit, seed)

    def learn_one(self, y: float, x: dict[Any, Any] | None = None, t: Any = None) -> None:
        """Learn that the series came to `y`, with features `x`, at time `t` (a number or a datetime)."""
        self._encoder.learn(x or {})
        if self._past:
            change = float(y) - self._past[0]
            self._size.update(abs(change))
            target = torch.tensor([change / self._scale])
            self._core.learn(self._input(self._past, x), target, t)
        self._past.appendleft(float(y))

    def forecast(self, horizon: int, xs: list[dict[Any, Any]] | None = None) -> list[float]:
        """The next `horizon` values; nothing moves."""
        if xs is not None and len(xs) != horizon:
            raise ConfigError(f"horizon={horizon}, but there are features for {len(xs)} steps. Give one for each.")
        past = deque(self._past, maxlen=self._past.maxlen)
        out = []
        for k in range(horizon):
            if past:
                (change,) = self._core.predict(self._input(past, None if xs is None else xs[k]), None)
                past.appendleft(past[0] + change * self._scale)
            out.append(past[0] if past else 0.0)
        return out

    @property
    def _scale(self) -> float:
        return self._size.mean or 1.0

    def _input(self, past: deque[float], x: dict[Any, Any] | None) -> list[float]:
        scale = self._scale
        changes = [(new - old) / scale for new, old in itertools.pairwise(past)]
        lags = [max(-_CLIP, min(_CLIP, change)) for change in changes]
        return lags + [0.0] * (self.lags - len(lags)) + self._encoder.encode(x or {})
