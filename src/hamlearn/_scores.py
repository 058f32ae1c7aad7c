"""Metrics of torchmetrics and of River behind one face: cumulative, and over a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import ConfigError

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are to see."""


class Scores:
    """Several named metrics, each over all samples and, with `window`, over the last so many."""

    def __init__(self, metrics: Any, window: int | None, prepare: Prepare | None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window={window} holds no sample. Give 1 or more, or None for no window.")
        named = _named(metrics)
        self._all = {name: _adapt(name, metric, prepare) for name, metric in named.items()}
        self._last = {}
        if window is not None:
            self._last = {name: adapter.windowed(window) for name, adapter in self._all.items()}

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction."""
        for adapter in (*self._all.values(), *self._last.values()):
            adapter.update(y, target)

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores over everything, and over the window."""
        return ({n: a.value() for n, a in self._all.items()}, {n: a.value() for n, a in self._last.items()})


class _Torch:
    """A torchmetrics metric: update(prediction, truth), compute()."""

    def __init__(self, metric: Any, prepare: Prepare | None) -> None:
        self._metric, self._prepare = metric, prepare

    def windowed(self, window: int) -> _Torch:
        from torchmetrics.wrappers import Running

        return _Torch(Running(self._metric.clone(), window), self._prepare)

    def update(self, y: Any, target: Any) -> None:
        if self._prepare is not None:
            y, target = self._prepare(y, target)
        elif isinstance(y, Tensor) and y.dim() == 1 and target.dim() == 0:
            # Scores of classes without a batch dimension: torchmetrics wants one.
            y, target = y.unsqueeze(0), target.unsqueeze(0)
        self._metric.update(y, target)

    def value(self) -> float:
        return float(self._metric.compute())


class _River:
    """A River metric: update(truth, prediction), get(), one Python value at a time."""

    def __init__(self, metric: Any, prepare: Prepare | None, window: int | None = None) -> None:
        self._metric, self._prepare, self._window = metric, prepare, window
        self._held: deque[tuple[Any, Any]] = deque()

    def windowed(self, window: int) -> _River:
        if not hasattr(self._metric, "revert"):
            raise ConfigError(
                f"{type(self._metric).__name__} cannot forget, as a window needs. "
                "Use window=None, or another metric."
            )
        return _River(self._metric.clone(), self._prepare, window)

    def update(self, y: Any, target: Any) -> None:
        pairs = [self._prepare(y, target)] if self._prepare is not None else self._pairs(y, target)
        for prediction, truth in pairs:
            self._metric.update(truth, prediction)
            if self._window is not None:
                self._held.append((truth, prediction))
                if len(self._held) > self._window:
                    self._metric.revert(*self._held.popleft())

    def value(self) -> float:
        return float(self._metric.get())

    def _pairs(self, y: Tensor, target: Tensor) -> Iterable[tuple[Any, Any]]:
        if not hasattr(self._metric, "requires_labels"):
            yield from zip(y.flatten().tolist(), target.flatten().tolist(), strict=True)
            return
        truths = [int(truth) for truth in target.flatten().tolist()]
        one_logit = y.numel() == len(truths)
        rows = y.reshape(len(truths), -1)
        if self._metric.requires_labels:
            labels = (rows[:, 0] > 0).int() if one_logit else rows.argmax(1)
            yield from zip(labels.tolist(), truths, strict=True)
            return
        p = torch.sigmoid(rows) if one_logit else torch.softmax(rows, 1)
        p = torch.cat([1 - p, p], 1) if one_logit else p
        for row, truth in zip(p.tolist(), truths, strict=True):
            yield dict(enumerate(row)), truth


def _named(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if not isinstance(metrics, Iterable) or hasattr(metrics, "update"):
        metrics = [metrics]
    named: dict[str, Any] = {}
    for metric in metrics:
        name = type(metric).__name__
        if name in named:
            raise ConfigError(f'there are two metrics called {name}. Name them: {{"first": …, "second": …}}.')
        named[name] = metric
    return named


def _adapt(name: str, metric: Any, prepare: Prepare | None) -> Any:
    if hasattr(metric, "update") and hasattr(metric, "compute"):
        return _Torch(metric, prepare)
    if hasattr(metric, "update") and hasattr(metric, "get"):
        return _River(metric, prepare)
    raise ConfigError(
        f"the metric {name!r} is a {type(metric).__name__}, which is neither of torchmetrics (update, "
        "compute) nor of "
        "River (update, get). Give an instance of one of their metrics, for example river.metrics.MAE()."
    )
