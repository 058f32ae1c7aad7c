"""Metrics of a run: over all samples, over the last so many, and for the baselines beside the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate.baselines import Baselines, Event
from hamlearn.evaluate.meters import Item, Kind, Meter, meter
from hamlearn.evaluate.saved import plain, restore
from hamlearn.evaluate.views import View, outputs_of
from hamlearn.sample import Id

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are given."""
Table = dict[str, dict[str, float]]
"""Predictors, of which the learner is called "", to metrics to values."""

TOGETHER = 64
"""Predictions that may wait to be counted together, which is much faster than one by one."""


class Scores:
    """Metrics of a run and of its baselines.

    Args:
        metrics: A metric of torchmetrics or of River, a list of them, a mapping from names to them, or a
            collection of either library. `None`: River's MAE or Accuracy, whichever fits the loss, if River is
            installed.
        window: Also score the last so many samples.
        prepare: As in `evaluate`.
        loss: The loss of the learner, which tells what its outputs are.
        late: How many samples may wait for their labels, of which the baselines remember what they knew.

    Attributes:
        metrics: The names of the metrics.

    Example:
        >>> import torch
        >>> scores = Scores(None, loss=torch.nn.functional.mse_loss)
        >>> for x in (1.0, 2.0, 4.0):
        ...     scores.update(torch.tensor([x + 0.5]), torch.tensor([x]))
        >>> scores.summary()["scores"], scores.summary()["baselines"]["last value"]
        ({'MAE': 0.5}, {'MAE': 1.5})
    """

    _state = ("metrics", "window", "_tracks", "_guessers")

    def __init__(
        self,
        metrics: Any = None,
        window: int | None = None,
        prepare: Prepare | None = None,
        loss: Any = None,
        late: int = 1000,
    ) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, Integral) or window < 1):
            raise ConfigError(f"window={window!r} must be a whole number of samples, at least 1, or None.")
        if prepare is not None and not callable(prepare):
            raise ConfigError(f"prepare={prepare!r} must be a function of (y, target), or None.")
        self._prepare, self._view, self.window = prepare, View(loss), window
        named = _named(_usual(loss) if metrics is None else metrics)
        self.metrics = list(named)
        # Metrics that take the same share the samples: of the learner (called "") and of each baseline.
        self._tracks: dict[Kind, dict[str, Track]] = {}
        self._guessers: dict[Kind, Baselines] = {}
        for one in (meter(name, metric, given=prepare is not None) for name, metric in named.items()):
            guesser = self._guessers.setdefault(one.kind, Baselines(one.kind, late))
            tracks = self._tracks.setdefault(one.kind, {})
            for predictor in ("", *guesser.names):
                tracks.setdefault(predictor, Track(window)).meters.append(one if not predictor else one.blank())
        self._waiting: list[tuple[Any, Any]] = []
        self._events: list[Event] = []
        self._read: dict[bool, Table] = {}

    def predicted(self, id: Id) -> None:
        """Take note that a sample was predicted whose label comes later: the baselines know no more than that."""
        self._came((id, 0))

    def update(self, y: Any, target: Any, id: Id | None = None) -> None:
        """Count one prediction, or the batch of them that one report has.

        Args:
            y: The prediction.
            target: The target.
            id: Of the sample, if its target came later.
        """
        if self._prepare is not None:
            y, target = self._prepare(y, target)
        elif isinstance(target, Tensor):
            # A source may use its memory again before this is counted.
            target = target.clone()
        whole = self._prepare is not None or not isinstance(y, Tensor) or y.dim() < 2
        self._waiting.append((y, target))
        self._came((id, 1 if whole else len(y)))

    def _came(self, event: Event) -> None:
        self._events.append(event)
        self._read.clear()
        if len(self._events) >= TOGETHER:
            self.count()

    def count(self) -> None:
        """Count what waits."""
        waiting, self._waiting = self._waiting, []
        events, self._events = self._events, []
        for kind, tracks in self._tracks.items() if events else ():
            items = self._items(kind, waiting) if waiting else []
            for name, column in ({"": items} | self._guessers[kind].guess(items, events)).items():
                if column:
                    tracks[name].take(column)

    def _items(self, kind: Kind, waiting: list[tuple[Any, Any]]) -> list[Item]:
        """Predictions as the metrics take them: together, where that does not change a number."""
        if self._prepare is not None or kind == "given":
            return [[pair] for pair in waiting]
        # A softmax of many rows may differ in the last bit from that of one.
        parts = _stacked(waiting) if kind in ("numbers", "labels") else waiting
        items = []
        for y, target in parts:
            p, t = (column.tolist() for column in getattr(self._view, kind)(y, target))
            items += [list(zip(a, b, strict=True)) for a, b in zip(p, t, strict=True)]
        return items

    @property
    def overall(self) -> Table:
        """The scores over everything, by predictor; the learner is called ""."""
        return self._table(recent=False)

    @property
    def recent(self) -> Table:
        """The scores over the window, by predictor; empty without a window."""
        return self._table(recent=True)

    @property
    def baselines(self) -> Table:
        """The scores of the baselines over the window, or over everything without one."""
        return {name: values for name, values in (self.recent or self.overall).items() if name}

    def _table(self, recent: bool) -> Table:
        if recent not in self._read:
            self.count()
            found: Table = {}
            for tracks in self._tracks.values():
                for name, track in tracks.items():
                    found.setdefault(name, {}).update(track.values(recent))
            self._read[recent] = {name: values for name, values in found.items() if values}
        return self._read[recent]

    def summary(self) -> dict[str, Any]:
        """The scores of learner and baselines, and in words each baseline that the learner is behind."""
        return {
            "scores": self.overall.get("", {}),
            "window": self.recent.get("", {}),
            "baselines": self.baselines,
            "behind": self._behind(),
        }

    def _behind(self) -> list[str]:
        over = "all samples" if self.window is None else f"the last {self.window:,} samples"
        own = (self.recent or self.overall).get("", {})
        bigger = {one.name: one.bigger_is_better for one in self._meters()}
        words = []
        for baseline, values in self.baselines.items():
            for name, value in values.items():
                # Comparisons with what is not a number are false.
                if bigger[name] is not None and (value > own[name] if bigger[name] else value < own[name]):
                    words.append(
                        f"The learner is behind the baseline {baseline!r}: {name} {own[name]:.4g} against "
                        f"{value:.4g} over {over}."
                    )
        return words

    def _meters(self) -> Iterable[Meter]:
        """The learner's metrics."""
        return (one for tracks in self._tracks.values() for one in tracks[""].meters)

    def require_resumable(self) -> None:
        """Raise for a metric whose counts cannot be saved, or that is not a single number.

        Raises:
            ConfigError: Naming the metric, and why it cannot be resumed.
        """
        for one in self._meters():
            one.require_resumable()

    def state_dict(self) -> dict[str, Any]:
        """All counts, as JSON; resuming from them is exact."""
        self.count()
        state: dict[str, Any] = plain(self)["vars"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which the same metrics gave."""
        for what, own in (("metrics", self.metrics), ("window", self.window)):
            found = restore(None, state[what])
            if found != own:
                raise CheckpointError(
                    f"the checkpoint has the {what} {found}, but these are {own}. Resume with the same metrics."
                )
        restore(self, {"vars": state})
        self._read.clear()


class Track:
    """Metrics of one predictor, over everything and over the last samples.

    Args:
        window: How many samples are kept; `None`: none.
    """

    _state = ("meters", "_last", "_counted")

    def __init__(self, window: int | None) -> None:
        self.meters: list[Meter] = []
        self._scratch: list[Meter] = []
        self._last: deque[Item] = deque(maxlen=window or 0)
        self._counted = 0

    def take(self, items: list[Item]) -> None:
        """Count samples."""
        for one in self.meters:
            one.add(items)
        self._last.extend(items)
        self._counted += len(items)

    def values(self, recent: bool) -> dict[str, float]:
        """The metrics over everything, or counted from the window and nothing else; empty before a sample."""
        if not self._counted or (recent and not self._last):
            return {}
        if recent:
            self._scratch = self._scratch or [one.blank() for one in self.meters]
            for one in self._scratch:
                one.empty()
                one.add(self._last, together=True)
        return {one.name: one.value() for one in (self._scratch if recent else self.meters)}


def _usual(loss: Any) -> dict[str, Any]:
    """The metric of River that fits a loss."""
    outputs = outputs_of(loss)
    try:
        from river import metrics
    except ImportError:
        return {}
    return {} if outputs is None else {outputs.metric: getattr(metrics, outputs.metric)()}


def _named(metrics: Any) -> dict[str, Any]:
    """Metrics by name; collections of either library, and lists in lists, are taken apart."""
    if isinstance(metrics, str | type):
        name = metrics if isinstance(metrics, str) else metrics.__name__
        raise ConfigError(f"{metrics!r} is not a metric. Give an object, for example river.metrics.{name}().")
    # A mapping, or a collection of torchmetrics.
    if hasattr(metrics, "items"):
        return dict(metrics.items())
    # A collection of River is a list with the methods of a metric.
    if not isinstance(metrics, Iterable) or (hasattr(metrics, "update") and not hasattr(metrics, "data")):
        return {type(metrics).__name__: metrics}
    named: dict[str, Any] = {}
    for metric in metrics:
        for name, one in _named(metric).items():
            if name in named:
                raise ConfigError(f'there are two metrics called {name}. Name them: {{"first": …, "second": …}}.')
            named[name] = one
    return named


def _stacked(waiting: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """One pair for all that waits, if they are tensors of one shape and type; else as they are."""
    y, target = (list(column) for column in zip(*waiting, strict=True))
    tensors = all(isinstance(part, Tensor) for part in (*y, *target))
    if not tensors or len({(a.shape, a.dtype, b.shape, b.dtype) for a, b in waiting}) > 1:
        return waiting
    if y[0].dim() < 2:
        return [(torch.stack(y).reshape(len(y), -1), torch.stack(target).reshape(len(y), -1))]
    return [(torch.cat(y), torch.stack(target) if target[0].dim() == 0 else torch.cat(target))]
