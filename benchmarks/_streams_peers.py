"""River's forests and ensembles on their documented defaults, test-then-train."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def _models(classes: bool) -> Mapping[str, Callable[[], Any]]:
    from river import ensemble, forest, preprocessing, tree

    if classes:
        return {
            "ARF": lambda: forest.ARFClassifier(n_models=10, seed=0),
            "SRP": lambda: ensemble.SRPClassifier(n_models=10, seed=0),
            "leveraging bagging": lambda: ensemble.LeveragingBaggingClassifier(
                tree.HoeffdingTreeClassifier(), n_models=10, seed=0
            ),
        }
    return {
        "ARF": lambda: forest.ARFRegressor(n_models=10, seed=0),
        "SRP": lambda: ensemble.SRPRegressor(n_models=10, seed=0),
        "adaptive Hoeffding tree": lambda: (
            preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeRegressor(seed=0)
        ),
    }


def scores(X: np.ndarray, y: np.ndarray, delay: int = 0) -> dict[str, dict[str, float]]:
    """Accuracy or R2, and microseconds a row, of each; also with the last target that is known as a column."""
    classes = y.dtype.kind in "iu"
    before = np.concatenate([np.repeat(y[:1], delay + 1), y[: -delay - 1]]).astype(np.float64)[:, None]
    found = {}
    for name, make in _models(classes).items():
        found[name] = _score(make(), X, y, classes, delay)
        found[f"{name}, with the last target"] = _score(make(), np.hstack([X, before]), y, classes, delay)
    return found


def _score(model: Any, X: np.ndarray, y: np.ndarray, classes: bool, delay: int) -> dict[str, float]:
    said, start = [], time.perf_counter()
    due: deque[tuple[dict[int, float], Any]] = deque()
    for row, target in zip(X.tolist(), y.tolist(), strict=True):
        if delay and len(due) == delay:
            model.learn_one(*due.popleft())
        x = dict(enumerate(row))
        said.append(model.predict_one(x))
        due.append((x, target))
        if not delay:
            model.learn_one(*due.popleft())
    micro = 1e6 * (time.perf_counter() - start) / len(y)
    if classes:
        right = sum(guess == target for guess, target in zip(said, y.tolist(), strict=True))
        return {"accuracy": right / len(y), "microseconds a row": micro}
    return {"R2": 1 - float(((np.array(said) - y) ** 2).mean() / y.var()), "microseconds a row": micro}
