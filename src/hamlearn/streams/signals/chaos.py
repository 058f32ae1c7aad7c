"""Chaotic signals: Hénon, Lorenz, Mackey-Glass. Integrated in Python floats, which JSON keeps exactly."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.streams.base import Stream
from hamlearn.streams.signals.base import forecast, require_step
from hamlearn.streams.values import mix_seed


def henon(
    a: float = 1.4,
    b: float = 0.3,
    ahead: int = 1,
    tau: float | None = None,
    seed: int = 0,
    washout: int = 100,
    dtype: torch.dtype | None = None,
) -> Stream:
    """The Hénon map, x ← 1 − a x² + y, y ← b x; the signal is x.

    Args:
        a: Of the map.
        b: Of the map.
        ahead: Samples between input and target.
        tau: Of the samples; `None` takes `Hyper.tau`.
        seed: Of the starting point.
        washout: Iterations before the first sample.
        dtype: `None` is torch's default.

    Example:
        >>> samples = iter(henon())
        >>> first, second = next(samples), next(samples)
        >>> bool(first.target == second.u)
        True
    """

    def advance(state: list[float], count: int) -> tuple[Tensor, list[float]]:
        x, y = state
        out = []
        for _ in range(count):
            out.append(x)
            x, y = 1.0 - a * x * x + y, b * x
        return _column(out), [x, y]

    draw = random.Random(mix_seed(seed))
    config = {"signal": "henon", "a": a, "b": b, "seed": seed}
    start = [draw.uniform(-0.1, 0.1), draw.uniform(-0.1, 0.1)]
    return forecast(advance, start, 1, ahead, tau, dtype, config, washout)


def lorenz(
    sigma: float = 10.0,
    rho: float = 28.0,
    beta: float = 8.0 / 3.0,
    ahead: int = 1,
    tau: float = 0.02,
    substeps: int = 2,
    seed: int = 0,
    washout: int = 500,
    dtype: torch.dtype | None = None,
) -> Stream:
    """The Lorenz system, ẋ = σ(y − x), ẏ = x(ρ − z) − y, ż = xy − βz; the signal is (x, y, z).

    Args:
        sigma: σ.
        rho: ρ.
        beta: β of the system.
        ahead: Samples between input and target.
        tau: Time between samples.
        substeps: Runge-Kutta steps (fourth order) between samples.
        seed: Of the starting point.
        washout: Samples left out before the first.
        dtype: `None` is torch's default.

    Example:
        >>> print(lorenz().spec)
        u: float32[3], target: float32[3], length: ∞
    """
    require_step(tau)
    _positive(substeps=substeps)
    dt = tau / substeps

    def rate(x: float, y: float, z: float) -> tuple[float, float, float]:
        return sigma * (y - x), x * (rho - z) - y, x * y - beta * z

    def step(p: list[float]) -> list[float]:
        k1 = rate(*p)
        k2 = rate(*(c + 0.5 * dt * k for c, k in zip(p, k1, strict=True)))
        k3 = rate(*(c + 0.5 * dt * k for c, k in zip(p, k2, strict=True)))
        k4 = rate(*(c + dt * k for c, k in zip(p, k3, strict=True)))
        return [c + dt / 6 * (q + 2 * r + 2 * s + v) for c, q, r, s, v in zip(p, k1, k2, k3, k4, strict=True)]

    def advance(state: list[float], count: int) -> tuple[Tensor, list[float]]:
        out = []
        for _ in range(count):
            out.append(state)
            for _ in range(substeps):
                state = step(state)
        return torch.tensor(out, dtype=torch.float64).reshape(-1, 3), state

    draw = random.Random(mix_seed(seed))
    config = {"signal": "lorenz", "sigma": sigma, "rho": rho, "beta": beta}
    config |= {"substeps": substeps, "seed": seed}
    start = [draw.uniform(0.5, 1.5) for _ in range(3)]
    return forecast(advance, start, 3, ahead, tau, dtype, config, washout)


def mackey_glass(
    delay: float = 17.0,
    beta: float = 0.2,
    gamma: float = 0.1,
    n: float = 10.0,
    ahead: int = 1,
    tau: float = 1.0,
    substeps: int = 10,
    seed: int = 0,
    washout: int = 200,
    dtype: torch.dtype | None = None,
) -> Stream:
    """The Mackey-Glass equation, ẋ(t) = β x(t−d) / (1 + x(t−d)ⁿ) − γ x(t).

    Args:
        delay: d; chaotic from about 17 on.
        beta: β of the equation.
        gamma: γ.
        n: n.
        ahead: Samples between input and target.
        tau: Time between samples.
        substeps: Runge-Kutta steps (fourth order, the delayed value interpolated) between samples; the
            delay must be a whole number of them.
        seed: Of the past before the first sample.
        washout: Samples left out before the first.
        dtype: `None` is torch's default.

    Example:
        >>> 0.0 < next(iter(mackey_glass())).u.item() < 1.5
        True
    """
    require_step(tau)
    _positive(substeps=substeps)
    dt = tau / substeps
    lag = round(delay / dt) if dt > 0 and delay / dt < 1e9 else 0
    if lag < 1 or abs(lag * dt - delay) > 1e-9 * delay:
        raise ConfigError(
            f"delay={delay} is not a whole number of steps of tau/substeps={dt:g}. Change substeps so that it is."
        )

    def source(past: float) -> float:
        if past < 0 and not float(n).is_integer():
            raise ArithmeticError(f"{past} to the power of {n} is not a real number")
        return float(beta * past / (1.0 + past**n))

    def advance(state: list[float], count: int) -> tuple[Tensor, list[float]]:
        # The line holds x(t − d), …, x(t): the oldest is the delayed value, the newest the signal.
        line = deque(state, maxlen=lag + 1)
        out, g2 = [], source(state[0])
        for _ in range(count):
            out.append(line[-1])
            for _ in range(substeps):
                x, g0, g1, g2 = line[-1], g2, source(0.5 * (line[0] + line[1])), source(line[1])
                k1 = g0 - gamma * x
                k2 = g1 - gamma * (x + 0.5 * dt * k1)
                k3 = g1 - gamma * (x + 0.5 * dt * k2)
                k4 = g2 - gamma * (x + dt * k3)
                line.append(x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        return _column(out), list(line)

    draw = random.Random(mix_seed(seed))
    config = {"signal": "mackey_glass", "delay": delay, "beta": beta, "gamma": gamma, "n": n}
    config |= {"substeps": substeps, "seed": seed}
    start = [1.2 + draw.uniform(-0.1, 0.1) for _ in range(lag + 1)]
    return forecast(advance, start, 1, ahead, tau, dtype, config, washout)


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}={count} must be 1 or more.")
