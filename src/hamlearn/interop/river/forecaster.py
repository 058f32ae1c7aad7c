"""Forecasts of a series, with or without further features."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import torch
from river.time_series.base import Forecaster
from torch.nn import functional

from hamlearn.credit import Credit
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper, Schedule
from hamlearn.interop.river.core import Core, Module, Named, is_whole, make_plan, require_count
from hamlearn.interop.river.encoding import Encoder, Standard, require_number

RATE = 0.01
"""The learning rate where none is given: changes of a series are mostly noise, which small steps average out."""

_CLIP = 5.0
"""Typical changes beyond which one counts no more: a broken sensor must not undo what was learned."""


class HLForecaster(Forecaster):
    """A network that learns to forecast a series by Hamiltonian Learning, as a River forecaster.

    It sees the last `lags` changes of the series, in units of their mean size, and learns the next change by the
    Huber loss, which lets no jump pull at full weight. Before it has learned, it forecasts that nothing changes.

    Args:
        lags: Past changes that it sees.
        net: `"linear"` or `"mlp"`.
        hidden: Neurons.
        module: A network of your own in place of `net`: a function from the number of inputs, `lags` and one for
            each further feature, to an `nn.Module` with one output, or to an `hl.Network`.
        lr: Learning rate; `None` is 0.01.
        momentum: Momentum of the weights.
        hyper: Instead of `lr` and `momentum`: all of τ, η, β, φ and s.
        credit: What z carries between steps, for networks with a state; `None` is `hl.Cleared()`.
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
        module: Module | None = None,
        lr: float | Schedule | None = None,
        momentum: float = 0.0,
        hyper: Hyper | None = None,
        credit: Credit | None = None,
        unit: float = 1.0,
        capacity: int = 16,
        seed: int = 0,
    ) -> None:
        if not is_whole(lags) or lags < 1:
            raise ConfigError(f"lags={lags!r} sees no past. Give 1 or more.")
        require_count("capacity", capacity, 0)
        if net not in ("linear", "mlp"):
            raise ConfigError(f'net={net!r} is not known. Give "linear" or "mlp": the past comes in by lags.')
        self.lags, self.net, self.hidden, self.module = lags, net, hidden, module
        self.lr, self.momentum, self.hyper, self.credit = lr, momentum, hyper, credit
        self.unit, self.capacity, self.seed = unit, capacity, seed
        self._encoder = Encoder(capacity)
        self._size = Standard()
        self._past: deque[float] = deque(maxlen=lags + 1)
        make = Named(net, hidden, 1) if module is None else module
        loss = functional.huber_loss
        self._core = Core(make_plan(make, loss, RATE, (lr, momentum, hyper), credit, unit, seed), lags)

    def learn_one(self, y: float, x: dict[Any, Any] | None = None, t: Any = None) -> None:
        """Learn that the series came to `y`, with features `x`, at time `t` (a number or a datetime)."""
        # What is refused is refused before anything has moved.
        y = require_number(y)
        self._core.tau(t)
        self._encoder.learn(x or {})
        if self._past:
            change = y - self._past[0]
            self._size.update(abs(change))
            target = torch.tensor([change / self._scale])
            self._core.learn(self._input(self._past, x), target, t)
        self._past.appendleft(y)

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
        return lags + [0.0] * (self.lags - len(lags)) + self._encoder.encode(x or {})[: self._encoder.used]
