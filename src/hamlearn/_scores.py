"""Metrics of torchmetrics and of River behind one face: cumulative, and over a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import CheckpointError, ConfigError

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are to see."""


class Scores:
    """Several named metrics, each over all samples and, with `window`, over the last so many."""

    def __init__(self, metrics: Any, window: int | None, prepare: Prepare | None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window={window} holds no sample. Give 1 or more, or None for no window.")
        named = _named(metrics)
        self._counted = 0
        self._all = {name: _adapt(name, metric, prepare) for name, metric in named.items()}
        self._last = {}
        if window is not None:
            self._last = {name: adapter.windowed(window) for name, adapter in self._all.items()}

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction."""
        self._counted += 1
        for adapter in (*self._all.values(), *self._last.values()):
            adapter.update(y, target)

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores over everything, and over the window; empty before the first prediction was counted."""
        if self._counted == 0:
            return {}, {}
        return ({n: a.value() for n, a in self._all.items()}, {n: a.value() for n, a in self._last.items()})

    def state_dict(self) -> dict[str, Any]:
        """What the metrics have counted, JSON-able; resuming from it is exact."""
        return {
            "counted": self._counted,
            "all": {name: adapter.state() for name, adapter in self._all.items()},
            "window": {name: adapter.state() for name, adapter in self._last.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, which the same metrics gave."""
        for adapters, saved in ((self._all, state["all"]), (self._last, state["window"])):
            if set(adapters) != set(saved):
                raise CheckpointError(
                    f"the checkpoint has the metrics {sorted(saved)}, but these are {sorted(adapters)}. "
                    "Resume with the same metrics."
                )
            for name, adapter in adapters.items():
                adapter.restore(saved[name])
        self._counted = int(state["counted"])


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

    def state(self) -> Any:
        raise ConfigError(
            f"{type(self._metric).__name__} of torchmetrics cannot be resumed here. Use a metric of River."
        )

    def restore(self, state: Any) -> None:
        self.state()


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

    def state(self) -> Any:
        held = [[truth, _dump(prediction)] for truth, prediction in self._held]
        return {"metric": _dump(self._metric), "held": held}

    def restore(self, state: Any) -> None:
        _restore(self._metric, state["metric"])
        self._held = deque((truth, _load(prediction)) for truth, prediction in state["held"])

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


def _dump(value: Any) -> Any:
    """Numbers out of nested objects and dictionaries, in JSON's terms."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"pairs": [[key, _dump(item)] for key, item in value.items()]}
    if isinstance(value, set | frozenset | list | tuple):
        return {"list": [_dump(item) for item in value]}
    return {"object": {name: _dump(item) for name, item in vars(value).items()}}


def _load(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _load(item) for key, item in state["pairs"]}
    return state


def _restore(thing: Any, state: Mapping[str, Any]) -> None:
    """Put numbers back into an object of the same make, in place, since metrics share their parts."""
    if isinstance(thing, dict):
        thing.clear()
        for key, item in state["pairs"]:
            if isinstance(item, dict):
                _restore(thing[key], item)
            else:
                thing[key] = item
        return
    for name, item in state["object"].items():
        if not isinstance(item, dict):
            setattr(thing, name, item)
        elif "list" not in item:
            _restore(getattr(thing, name), item)


def _named(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str | type) or not isinstance(metrics, Iterable) or hasattr(metrics, "update"):
        metrics = [metrics]
    named: dict[str, Any] = {}
    for metric in metrics:
        if isinstance(metric, str | type):
            name = metric if isinstance(metric, str) else metric.__name__
            raise ConfigError(f"{metric!r} is no metric. Give an object, for example river.metrics.{name}().")
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
