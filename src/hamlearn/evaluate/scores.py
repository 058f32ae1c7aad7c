"""Metrics of a run: over all samples, over the last so many, and for the baselines beside the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.evaluate import saved
from hamlearn.evaluate.meters import Item, Kind, Meter, TorchMeter, meter
from hamlearn.evaluate.views import UndecidedError, View, outputs_of
from hamlearn.evaluate.window import Feed, Mark

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are given."""

TOGETHER = 64
"""Predictions that may wait to be counted together, which is much faster than one by one."""
UNDECIDED = 1000
"""Targets that may all be 1 before they have to tell whether the other class is 0 or -1."""


class Scores:
    """Metrics of a run and of its baselines.

    Args:
        metrics: A metric of torchmetrics or of River, a list of them, a mapping from names to them, or a
            collection of either library. `None`: River's MAE or Accuracy, whichever fits the loss, if River is
            installed.
        window: Also score the last so many samples.
        prepare: As in `evaluate`.
        loss: The loss of the learner, which tells what its outputs are.

    Example:
        >>> import torch
        >>> scores = Scores(None, loss=torch.nn.functional.mse_loss)
        >>> for x in (1.0, 2.0, 4.0):
        ...     scores.update(torch.tensor([x + 0.5]), torch.tensor([x]))
        >>> scores.summary()["scores"], scores.summary()["baselines"]["last value"]
        ({'MAE': 0.5}, {'MAE': 1.5})
    """

    def __init__(
        self, metrics: Any = None, window: int | None = None, prepare: Prepare | None = None, loss: Any = None
    ) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, Integral) or window < 1):
            raise ConfigError(f"window={window!r} must be a whole number of samples, at least 1, or None.")
        if prepare is not None and not callable(prepare):
            raise ConfigError(f"prepare={prepare!r} must be a function of (y, target), or None.")
        self._prepare, self._view = prepare, View(loss)
        self.window = window
        meters = [
            meter(name, metric) for name, metric in _named(_usual(loss) if metrics is None else metrics).items()
        ]
        self._names = [one.name for one in meters]
        self._bigger = {one.name: one.bigger_is_better for one in meters}
        for one in meters:
            one.kind = "given" if prepare is not None and isinstance(one, TorchMeter) else one.kind
        self._feeds = _feeds(meters, window)
        self._classes = any(feed.kind in ("labels", "probabilities", "bits") for feed in self._feeds)
        self._waiting: list[tuple[Any, Any]] = []

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction, or the batch of them that one report has."""
        if not self._feeds:
            return
        if self._prepare is not None:
            y, target = self._prepare(y, target)
        elif isinstance(target, Tensor):
            # A source may use its memory again before this is counted.
            target = target.clone()
            if self._classes:
                self._view.decide(target)
        self._waiting.append((y, target))
        if len(self._waiting) >= TOGETHER:
            self.count()

    def count(self) -> None:
        """Count what waits."""
        waiting = self._waiting
        if not waiting:
            return
        try:
            items = [list(self._items(feed.kind)) for feed in self._feeds]
        except UndecidedError:
            if len(waiting) > UNDECIDED:
                raise ConfigError(
                    f"the first {len(waiting)} targets are all 1, which does not tell whether the other class is "
                    "0 or -1. Pass prepare=lambda y, target: (int(y > 0), int(target > 0)) for -1, y > 0.5 for 0."
                ) from None
            return
        self._waiting = []
        for feed, parts in zip(self._feeds, items, strict=True):
            for part in parts:
                feed.take(part)

    def _items(self, kind: Kind) -> Iterator[list[Item]]:
        """What waits as the metrics take it: neighbours together, where that does not change a number."""
        if self._prepare is not None or kind == "given":
            yield from ([[pair]] for pair in self._waiting)
            return
        view = getattr(self._view, kind)
        # A softmax of many rows may differ in the last bit from that of one.
        parts = _alike(self._waiting) if kind in ("numbers", "labels") else ([pair] for pair in self._waiting)
        for part in parts:
            p, t = (column.tolist() for column in view(*_stacked(part)))
            yield [list(zip(a, b, strict=True)) for a, b in zip(p, t, strict=True)]

    def reading(self, keep: bool = True) -> Reading:
        """The scores of this moment; with `keep=False`, of the moment when they are first looked at."""
        reading = Reading(self)
        if keep:
            reading.settle()
        return reading

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores over everything, and over the window; empty before the first prediction was counted."""
        reading = self.reading()
        return reading.scores, reading.window

    def summary(self) -> dict[str, Any]:
        """The scores of learner and baselines, and in words each baseline that the learner is behind."""
        reading = self.reading()
        found = {"scores": reading.scores, "window": reading.window, "baselines": reading.baselines}
        return found | {"behind": self._behind(reading)}

    def _behind(self, reading: Reading) -> list[str]:
        own = reading.window or reading.scores
        over = f"the last {self.window:,} samples" if reading.window else "all samples"
        words = []
        for baseline, values in reading.baselines.items():
            for name, value in values.items():
                bigger = self._bigger[name]
                if bigger is not None and (value > own[name] if bigger else value < own[name]):
                    words.append(
                        f"The learner is behind the baseline {baseline!r}: {name} {own[name]:.4g} against "
                        f"{value:.4g} over {over}."
                    )
        return words

    def require_resumable(self) -> None:
        """Raise for a metric whose counts cannot be saved, or that is not a single number.

        Raises:
            ConfigError: Naming the metric, and why it cannot be resumed.
        """
        for feed in self._feeds:
            for one in feed.lines[""].meters:
                one.state_dict()
                one.value()

    def state_dict(self) -> dict[str, Any]:
        """What was counted, JSON-able; resuming from it is exact."""
        self.count()
        waiting = {name: [pair[k] for pair in self._waiting] for k, name in enumerate(("y", "target"))}
        return {
            "metrics": self._names,
            "window": self.window,
            "codes": None if self._view.codes is None else list(self._view.codes),
            "waiting": saved.packed(waiting) if self._waiting else None,
            "feeds": [feed.state_dict() for feed in self._feeds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which the same metrics gave."""
        for what, own in (("metrics", self._names), ("window", self.window)):
            if state[what] != own:
                raise CheckpointError(
                    f"the checkpoint has the {what} {state[what]}, but these are {own}. "
                    "Resume with the same metrics."
                )
        self._view.codes = None if state["codes"] is None else tuple(state["codes"])
        self._waiting = []
        if state["waiting"] is not None:
            waiting = saved.unpacked(state["waiting"])
            self._waiting = list(zip(waiting["y"], waiting["target"], strict=True))
        for feed, part in zip(self._feeds, state["feeds"], strict=True):
            feed.load_state_dict(part)


class Reading:
    """Scores at one moment, each computed when it is looked at."""

    __slots__ = ("_found", "_marks", "_scores")

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._found: dict[str, dict[str, float]] | None = None
        self._marks: list[tuple[Feed, dict[str, Mark]]] = []

    def settle(self) -> dict[str, dict[str, float]]:
        """Take down what would be lost once more is counted; a window can be computed at any time."""
        if self._found is not None:
            return self._found
        self._scores.count()
        self._found = {}
        for feed in self._scores._feeds:
            for name, line in feed.lines.items():
                if name == "" or line.ring is None:
                    self._found.setdefault(name, {}).update(line.read())
            self._marks.append((feed, {name: line.ring.mark() for name, line in feed.lines.items() if line.ring}))
        return self._found

    @property
    def scores(self) -> dict[str, float]:
        """Over everything."""
        return self.settle().get("", {})

    @property
    def window(self) -> dict[str, float]:
        """Over the last samples."""
        return self._windows(lambda name: name == "").get("", {})

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """The scores of the baselines: over the window, or over everything without one."""
        found = {name: values for name, values in self.settle().items() if name and values}
        return found | self._windows(lambda name: name != "")

    def _windows(self, asked: Callable[[str], bool]) -> dict[str, dict[str, float]]:
        self.settle()
        found: dict[str, dict[str, float]] = {}
        for feed, marks in self._marks:
            for name, mark in marks.items():
                if asked(name) and (values := feed.lines[name].read_window(mark)):
                    found.setdefault(name, {}).update(values)
        return found


def _usual(loss: Any) -> dict[str, Any]:
    entry = outputs_of(loss)
    if entry is None or entry.metric is None:
        return {}
    try:
        from river import metrics
    except ImportError:
        return {}
    return {entry.metric: getattr(metrics, entry.metric)()}


def _named(metrics: Any) -> dict[str, Any]:
    """Metrics by name; collections of either library, and lists in lists, are taken apart."""
    if isinstance(metrics, Mapping):
        return dict(metrics.items())
    if isinstance(metrics, str | type):
        name = metrics if isinstance(metrics, str) else metrics.__name__
        raise ConfigError(f"{metrics!r} is not a metric. Give an object, for example river.metrics.{name}().")
    # A collection of River is a list with the methods of a metric; torchmetrics' has names.
    if hasattr(metrics, "update") and hasattr(metrics, "items"):
        return dict(metrics.items())
    if not isinstance(metrics, Iterable) or (hasattr(metrics, "update") and not hasattr(metrics, "data")):
        return {type(metrics).__name__: metrics}
    named: dict[str, Any] = {}
    for metric in metrics:
        for name, one in _named(metric).items():
            if name in named:
                raise ConfigError(f'there are two metrics called {name}. Name them: {{"first": …, "second": …}}.')
            named[name] = one
    return named


def _feeds(meters: list[Meter], window: int | None) -> list[Feed]:
    """Metrics that take the same share one feed, so that it is made once."""
    kinds: dict[Kind, list[Meter]] = {}
    for one in meters:
        kinds.setdefault(one.kind, []).append(one)
    return [Feed(kind, group, window) for kind, group in kinds.items()]


def _alike(waiting: list[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Neighbours whose tensors have one shape and type."""

    def form(pair: tuple[Any, Any]) -> Any:
        tensors = all(isinstance(part, Tensor) for part in pair)
        return [(part.shape, part.dtype) for part in pair] if tensors else id(pair)

    return (list(part) for _, part in groupby(waiting, key=form))


def _stacked(part: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    if len(part) == 1:
        return part[0]
    y, target = zip(*part, strict=True)
    if y[0].dim() < 2:
        return torch.stack(y).reshape(len(part), -1), torch.stack(target).reshape(len(part), -1)
    return torch.cat(y), torch.stack(target) if target[0].dim() == 0 else torch.cat(target)
