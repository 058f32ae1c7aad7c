"""Scores of test-then-train answers, written out: classes by probabilities, numbers by intervals."""

from __future__ import annotations

import numpy as np

LEAST = 1e-6
"""A probability below this counts as this in the log loss: a class that is new has 0."""


def classes_scores(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of probabilities (rows × classes) of the classes `y`.

    Kappa is what is right beyond chance, with the shares of classes as they are; kappa-temporal is what is right
    beyond saying the last class again.

    Example:
        >>> found = classes_scores(np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]), np.array([0, 1, 1]))
        >>> round(found["accuracy"], 3), round(found["kappa"], 3), round(found["Brier"], 3)
        (0.667, 0.4, 0.673)
    """
    said, rows = p.argmax(1), np.arange(len(y))
    right = float((said == y).mean())
    count = p.shape[1]
    chance = float(np.bincount(said, minlength=count) @ np.bincount(y, minlength=count)) / len(y) ** 2
    same = float((y[1:] == y[:-1]).mean()) if len(y) > 1 else 0.0
    one_hot = np.zeros_like(p)
    one_hot[rows, y] = 1.0
    return {
        "accuracy": right,
        "kappa": _beyond(right, chance),
        "kappa-temporal": _beyond(right, same),
        "log loss": float(-np.log(np.clip(p[rows, y], LEAST, 1)).mean()),
        "Brier": float(((p - one_hot) ** 2).sum(1).mean()),
        "last class": same,
        "majority": float(np.bincount(y).max()) / len(y),
    }


def _beyond(right: float, usual: float) -> float:
    return (right - usual) / (1 - usual) if usual < 1 else 0.0


def numbers_scores(y: np.ndarray, said: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, float]:
    """Scores of numbers with intervals that ought to hold nine of ten.

    Example:
        >>> y = np.array([1.0, 2.0, 3.0, 4.0])
        >>> numbers_scores(y, y, y - 1, y + 1)["R2"], numbers_scores(y, y + 1, y, y)["MAE"]
        (1.0, 1.0)
    """
    y = y.astype(np.float64)
    variance = float(y.var()) or 1.0
    before = np.concatenate([y[:1], y[:-1]])
    width = high - low
    given = np.isfinite(width)  # before the first target is known, an interval is infinite
    return {
        "R2": 1 - float(((said - y) ** 2).mean()) / variance,
        "MAE": float(np.abs(said - y).mean()),
        "coverage": float(((low <= y) & (y <= high))[given].mean()),
        "interval width": float(width[given].mean()),
        "R2 of the last value": 1 - float(((before - y) ** 2).mean()) / variance,
    }
