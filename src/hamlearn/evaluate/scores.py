"""Metrics of torchmetrics and of River behind one face: cumulative, and over a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate.adapters import Adapter, Prepare, RiverAdapter, TorchAdapter

__all__ = ["Prepare", "Scores"]


class Scores:
    """Several named metrics, each over all samples and, with `window`, over the last so many.

    Args:
        metrics: As in `evaluate`.
        window: As in `evaluate`.
        prepare: As in `evaluate`.
        logits: Whether outputs are known to be logits.
    """

    def __init__(self, metrics: Any, window: int | None, prepare: Prepare | None, logits: bool = False) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, Integral) or window < 1):
            raise ConfigError(
                f"window={window!r} holds no whole number of samples. Give 1 or more, or None for no window."
            )
        if prepare is not None and not callable(prepare):
            raise ConfigError(f"prepare={prepare!r} is no function of (y, target). Leave it out, or give one.")
        named = _named(metrics)
        self._counted = 0
        self._all = {name: _adapt(name, metric, prepare, logits) for name, metric in named.items()}
        self._last: dict[str, Adapter] = {}
        if window is not None:
            self._last = {name: adapter.windowed(window) for name, adapter in self._all.items()}

    def require_resumable(self) -> None:
        """Refuse, by name, a metric that would not go on exactly after a resume.

        Raises:
            ConfigError: Naming the metric, and why it cannot be resumed.
        """
        for adapter in (*self._all.values(), *self._last.values()):
            adapter.rehearse()

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction."""
        self._counted += 1
        for adapter in (*self._all.values(), *self._last.values()):
            adapter.update(y, target)

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores over everything, and over the window; empty before the first prediction was counted."""
        if self._counted == 0:
            return {}, {}
        return ({n: _value(a) for n, a in self._all.items()}, {n: _value(a) for n, a in self._last.items()})

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
        for adapters, saved in ((self._all, state["all"]), (self._last, state["window"])):
            for name, adapter in adapters.items():
                adapter.restore(saved[name])
        self._counted = int(state["counted"])


def _value(adapter: Adapter) -> float:
    try:
        return adapter.value()
    # Whatever a library raises: its metrics say in many ways that there is no number, or say nothing.
    except Exception as error:
        why = str(error) or type(error).__name__
        raise ConfigError(
            f"the metric {adapter.name!r} does not come to a single number ({why}). Choose one that does, for "
            "example Accuracy; several go into a list."
        ) from error


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


def _adapt(name: str, metric: Any, prepare: Prepare | None, logits: bool) -> Adapter:
    if hasattr(metric, "update") and hasattr(metric, "compute"):
        return TorchAdapter(name, metric, prepare, logits)
    if hasattr(metric, "update") and hasattr(metric, "get"):
        return RiverAdapter(name, metric, prepare)
    raise ConfigError(
        f"the metric {name!r} is a {type(metric).__name__}, which is neither of torchmetrics (update, compute) "
        "nor of River (update, get). Give an instance of one of their metrics, for example river.metrics.MAE()."
    )
