"""Signals are made block by block: one call for many samples, and only the state between blocks is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
        self._made: tuple[Tensor, Tensor, Any] | None = None
        self._rewind()

    @property
    def spec(self) -> Spec:
        """Vectors, without end."""
        u, target = (TensorSpec((size,), self._dtype) for size in self._sizes)
        return Spec(u, target, math.inf)

    def _config(self) -> dict[str, Any]:
        return {**self._settings, "tau": self._tau}

    def _rewind(self) -> None:
        self._state, self._k, self._made = self._start, 0, None

    def _cursor(self) -> dict[str, Any]:
        return {"state": self._state, "k": self._k}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self._state, self._k, self._made = cursor["state"], int(cursor["k"]), None

    def _block(self, n: int) -> Block:
        if self._made is None:
            u, target, after = self._make(self._state)
            self._made = u.to(self._dtype), target.to(self._dtype), after
        u, target, after = self._made
        rows = slice(self._k, min(self._k + n, BLOCK))
        u, target = u[rows].clone(), target[rows].clone()
        self._k = rows.stop
        if self._k == BLOCK:
            self._state, self._k, self._made = after, 0, None
        tau: list[float | None] | None = None if self._tau is None else [self._tau] * len(u)
        return Block(len(u), [u], None, [target], None, tau=tau)


def require_step(tau: float) -> None:
    """Raise if τ is not a time step."""
    if not (tau > 0 and math.isfinite(tau)):
        raise ConfigError(f"tau={tau} must be a positive, finite number.")


def washed_out(advance: Advance, state: Any, count: int, config: dict[str, Any]) -> Any:
    """The state after `count` values, which are left out."""
    if count < 0:
        raise ConfigError(f"washout={count} must be 0 or more: it is the number of values that are left out.")
    try:
        return advance(state, count)[1]
    except ArithmeticError as error:
        raise _runs_away(config) from error


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
) -> SignalStream:
    """The task of predicting a signal `ahead` samples ahead."""
    if ahead < 0:
        raise ConfigError(f"ahead={ahead} looks into the past. Give 0 (the value itself) or more samples.")

    def block(state: Any) -> tuple[Tensor, Tensor, Any]:
        try:
            x, after = advance(state, BLOCK)
            if ahead:
                x = torch.cat([x, advance(after, ahead)[0]])
        except ArithmeticError as error:
            raise _runs_away(config) from error
        if not bool(x.isfinite().all()):
            raise _runs_away(config)
        return x[:BLOCK], x[ahead : ahead + BLOCK], after

    # Now, since a signal that runs away at once is a mistake in its settings, not in its stream.
    block(start)
    return SignalStream(block, start, (channels, channels), tau, dtype, {**config, "ahead": ahead})
