"""Signals are made block by block: one call for many samples, and only the state between blocks is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.streams.base import Stream
from hamlearn.streams.blocks import Block
from hamlearn.streams.values import Spec, TensorSpec

BLOCK = 256
"""Samples made at once: enough to make the cost of a call small, few enough to hold."""

Advance = Callable[[Any, int], tuple[Tensor, Any]]
"""(state, n) to the next n values, shape (n, channels), and the state after them. States are JSON-able."""

Make = Callable[[Any], tuple[Tensor, Tensor, Any]]
"""State to the next `BLOCK` inputs and targets, and the state after them."""


class SignalStream(Stream):
    """An endless stream of the inputs and targets that a block function makes."""

    _state: Any
    _k: int

    def __init__(
        self,
        make: Make,
        start: Any,
        sizes: tuple[int, int],
        tau: float | None,
        dtype: torch.dtype | None,
        config: dict[str, Any],
    ) -> None:
        if tau is not None:
            require_step(tau)
        self._make, self._start = make, start
        self._sizes, self._tau = sizes, tau
        self._dtype = dtype or torch.get_default_dtype()
        self._settings = config
        # The present block: the state it was made of, inputs, targets, and the state after it.
        self._made: tuple[Any, Tensor, Tensor, Any] = (None,) * 4  # type: ignore[assignment]
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors, without end."""
        u, target = (TensorSpec((size,), self._dtype) for size in self._sizes)
        return Spec(u, target, math.inf)

    def _config(self) -> dict[str, Any]:
        return {**self._settings, "tau": self._tau}

    def _fresh(self) -> dict[str, Any]:
        return {"_state": self._start, "_k": 0}

    def _block(self, n: int) -> Block:
        if self._made[0] is not self._state:
            u, target, after = self._make(self._state)
            self._made = self._state, u.to(self._dtype), target.to(self._dtype), after
        _, u, target, after = self._made
        rows = slice(self._k, min(self._k + n, BLOCK))
        u, target = u[rows].clone(), target[rows].clone()
        self._k = rows.stop
        if self._k == BLOCK:
            self._state, self._k = after, 0
        tau: list[float | None] | None = None if self._tau is None else [self._tau] * len(u)
        return Block(len(u), [u], None, [target], None, tau=tau)


def require_step(tau: float) -> None:
    """Raise if τ is not a time step."""
    if not (tau > 0 and math.isfinite(tau)):
        raise ConfigError(f"tau={tau} must be a positive, finite number.")


def _runs_away(config: dict[str, Any]) -> ConfigError:
    settings = ", ".join(f"{name}={value}" for name, value in config.items() if name != "signal")
    return ConfigError(
        f"the signal {config['signal']} runs away to numbers that are not finite with {settings}. "
        "Give settings with which it stays bounded, as the defaults do."
    )


def forecast(
    advance: Advance,
    start: Any,
    channels: int,
    ahead: int,
    tau: float | None,
    dtype: torch.dtype | None,
    config: dict[str, Any],
    washout: int = 0,
) -> SignalStream:
    """The task of predicting a signal `ahead` samples ahead, once the first `washout` of them are left out."""
    if ahead < 0:
        raise ConfigError(f"ahead={ahead} looks into the past. Give 0 (the value itself) or more samples.")
    if washout < 0:
        raise ConfigError(f"washout={washout} must be 0 or more: it is the number of values that are left out.")

    def values(state: Any, count: int) -> tuple[Tensor, Any]:
        try:
            x, after = advance(state, count)
        except ArithmeticError as error:
            raise _runs_away(config) from error
        if not bool(x.isfinite().all()):
            raise _runs_away(config)
        return x, after

    def block(state: Any) -> tuple[Tensor, Tensor, Any]:
        x, after = values(state, BLOCK)
        x = torch.cat([x, values(after, ahead)[0]])
        return x[:BLOCK], x[ahead : ahead + BLOCK], after

    start = values(start, washout)[1]
    # Now, since a signal that runs away at once is a mistake in its settings, not in its stream.
    block(start)
    return SignalStream(block, start, (channels, channels), tau, dtype, {**config, "ahead": ahead})
