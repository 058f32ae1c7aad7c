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
from hamlearn.evaluate.group import Group, Table
from hamlearn.evaluate.meters import Item, Kind, Meter, TorchMeter, meter
from hamlearn.evaluate.views import UndecidedError, View, outputs_of

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are given."""

TOGETHER = 64
"""Predictions that may wait to be counted together, which is much faster than one by one."""
UNDECIDED = 1000
"""Targets that may all be 1 before they have to tell whether the other class is 0 or -1."""


class Scores(saved.Saved):
    """Metrics of a run and of its baselines.

    Args:
        metrics: A metric of torchmetrics or of River, a list of them, a mapping from names to them, or a
            collection of either library. `None`: River's MAE or Accuracy, whichever fits the loss, if River is
            installed.
        window: Also score the last so many samples.
        prepare: As in `evaluate`.
        loss: The loss of the learner, which tells what its outputs are.

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

    _state = ("metrics", "window", "_view", "_waiting", "_groups")

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
        self.metrics = [one.name for one in meters]
        self._bigger = {one.name: one.bigger_is_better for one in meters}
        for one in meters:
            one.kind = "given" if prepare is not None and isinstance(one, TorchMeter) else one.kind
        self._groups = _grouped(meters, window)
        self._classes = any(group.kind in ("labels", "probabilities", "bits") for group in self._groups)
        self._waiting: list[tuple[Any, Any]] = []

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction, or the batch of them that one report has."""
        if not self._groups:
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
            items = [list(self._items(group.kind)) for group in self._groups]
        except UndecidedError:
            if len(waiting) > UNDECIDED:
                raise ConfigError(
                    f"the first {len(waiting)} targets are all 1, which does not tell whether the other class is "
                    "0 or -1. Pass prepare=lambda y, target: (int(y > 0), int(target > 0)) for -1, y > 0.5 for 0."
                ) from None
            return
        self._waiting = []
        for group, parts in zip(self._groups, items, strict=True):
            for part in parts:
                group.take(part)

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

    def overall(self) -> Table:
        """The scores over everything, by predictor; the learner is called ""."""
        return self._read(Group.overall)

    def recent(self) -> Table:
        """The scores over the window, by predictor; empty without a window."""
        return self._read(Group.recent)

    def _read(self, table_of: Callable[[Group], Table]) -> Table:
        self.count()
        found: Table = {}
        for group in self._groups:
            for name, values in table_of(group).items():
                found.setdefault(name, {}).update(values)
        return found

    def read(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores over everything, and over the window; empty before the first prediction was counted."""
        return self.overall().get("", {}), self.recent().get("", {})

    def summary(self) -> dict[str, Any]:
        """The scores of learner and baselines, and in words each baseline that the learner is behind."""
        overall, recent = self.overall(), self.recent()
        own, own_recent = overall.pop("", {}), recent.pop("", {})
        found = {"scores": own, "window": own_recent, "baselines": recent or overall}
        return found | {"behind": self._behind(own_recent or own, recent or overall)}

    def _behind(self, own: dict[str, float], baselines: Table) -> list[str]:
        over = "all samples" if self.window is None else f"the last {self.window:,} samples"
        words = []
        for baseline, values in baselines.items():
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
        for group in self._groups:
            for one in group.meters:
                one.state_dict()
                one.value()

    def state_dict(self) -> dict[str, Any]:
        """What was counted, JSON-able; resuming from it is exact."""
        self.count()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which the same metrics gave."""
        for what, own in (("metrics", self.metrics), ("window", self.window)):
            found = saved.restore(None, state[what])
            if found != own:
                raise CheckpointError(
                    f"the checkpoint has the {what} {found}, but these are {own}. Resume with the same metrics."
                )
        super().load_state_dict(state)


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


def _grouped(meters: list[Meter], window: int | None) -> list[Group]:
    kinds: dict[Kind, list[Meter]] = {}
    for one in meters:
        kinds.setdefault(one.kind, []).append(one)
    return [Group(kind, group, window) for kind, group in kinds.items()]


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
