"""One interface for the metrics of torchmetrics and of River."""

from __future__ import annotations

import copy
import math
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.evaluate.saved import NotPlainError, plain

Kind = Literal["numbers", "labels", "probabilities", "bits", "given"]
"""What a metric takes: numbers, classes, a probability of each class, a probability of each of several labels, or
outputs and targets as they are."""
Item = list[tuple[Any, Any]]
"""One sample: a prediction and a truth for each number or decision that it has."""


class Meter(ABC):
    """A metric that is updated, emptied and read.

    Attributes:
        kind: What it takes.
        bigger_is_better: Whether a larger value is better; `None`: not known.
    """

    _state = ("metric",)
    kind: Kind
    bigger_is_better: bool | None

    def __init__(self, name: str, metric: Any) -> None:
        self.name, self.metric = name, metric
        try:
            self._blank = copy.deepcopy(metric)
        except Exception as error:
            raise self._unsaved(f"it cannot be copied ({type(error).__name__}: {error})") from error

    def blank(self) -> Meter:
        """The same metric without counts."""
        again = copy.copy(self)
        again.metric = copy.deepcopy(self._blank)
        return again

    def add(self, items: Sequence[Item], together: bool = False) -> None:
        """Count samples, one by one: the rounding of sums must not depend on how many there are at a time."""
        try:
            for part in [items] if together else ([item] for item in items):
                self._update(part)
        # Libraries raise errors of many types for values that a metric does not take.
        except Exception as error:
            prediction, truth = map(_outline, items[0][0])
            raise ConfigError(
                f"the metric {self.name!r} ({self._library}) does not take {prediction} as a prediction and "
                f"{truth} as its truth ({type(error).__name__}: {error}). Choose one that fits the outputs, for "
                'several classes one of task="multiclass" or of River, or pass what it takes by prepare.'
            ) from error

    def value(self) -> float:
        """Its value now."""
        try:
            return float(self._value())
        # Libraries say in many ways that there is no single number.
        except Exception as error:
            raise ConfigError(
                f"the metric {self.name!r} does not come to a single number ({str(error) or type(error).__name__})"
                ". Choose one that does, for example Accuracy."
            ) from error

    def require_resumable(self) -> None:
        """Raise if a checkpoint cannot keep its counts, or if it is not a single number."""
        try:
            plain(self)
        except NotPlainError as error:
            raise self._unsaved(str(error)) from error
        self.value()

    @abstractmethod
    def _update(self, items: Sequence[Item]) -> None: ...

    @abstractmethod
    def _value(self) -> Any: ...

    @abstractmethod
    def empty(self) -> None:
        """Forget all counts."""

    @property
    def _library(self) -> str:
        return f"{type(self.metric).__module__.partition('.')[0]}.{type(self.metric).__name__}"

    def _unsaved(self, reason: str) -> ConfigError:
        return ConfigError(
            f"the metric {self.name!r} ({self._library}) cannot be saved and resumed exactly: {reason}. Choose "
            "another metric, for example MAE or Accuracy."
        )


class RiverMeter(Meter):
    """A metric of River, or one with its methods: update(truth, prediction), get()."""

    def __init__(self, name: str, metric: Any) -> None:
        super().__init__(name, metric)
        needs_labels = getattr(metric, "requires_labels", None)
        self.kind = "numbers" if needs_labels is None else "labels" if needs_labels else "probabilities"
        try:
            self.bigger_is_better = metric.bigger_is_better
        except (AttributeError, NotImplementedError):
            self.bigger_is_better = None
        self._counts_pairs = self.kind == "labels" and _counts_pairs(metric)

    def add(self, items: Sequence[Item], together: bool = False) -> None:
        """Count samples; River's metrics add one pair at a time themselves."""
        super().add(items, together=True)

    def _update(self, items: Sequence[Item]) -> None:
        if self._counts_pairs:
            # Ten times as fast as one by one. River counts one sample for each call, whatever its weight.
            for (prediction, truth), n in Counter(chain.from_iterable(items)).items():
                self.metric.update(truth, prediction, n)
                self.metric.cm.n_samples += n - 1
            return
        for prediction, truth in chain.from_iterable(items):
            self.metric.update(truth, dict(enumerate(prediction)) if type(prediction) is list else prediction)

    def _value(self) -> Any:
        return self.metric.get()

    def empty(self) -> None:
        """Forget all counts; a confusion matrix in place, which is much faster than a copy."""
        if self._counts_pairs:
            self.metric.cm.__init__(self.metric.cm._init_classes)
        else:
            self.metric = copy.deepcopy(self._blank)


class TorchMeter(Meter):
    """A metric of torchmetrics: update(prediction, truth), compute()."""

    def __init__(self, name: str, metric: Any, given: bool = False) -> None:
        super().__init__(name, metric)
        kind, self._binary = _torch_kind(metric)
        self.kind = "given" if given else kind
        self.bigger_is_better = getattr(metric, "higher_is_better", None)

    def _update(self, items: Sequence[Item]) -> None:
        if self.kind == "given":
            for prediction, truth in chain.from_iterable(items):
                self.metric.update(prediction, truth)
            return
        device = getattr(self.metric, "device", None)
        p = torch.tensor([[prediction for prediction, _ in item] for item in items], device=device)
        t = torch.tensor([[truth for _, truth in item] for item in items], device=device)
        if self.kind in ("labels", "probabilities") or t.shape[1] == 1:
            p, t = p.flatten(0, 1), t.flatten(0, 1)
        self.metric.update(p[:, 1] if self._binary and p.dim() > 1 and p.shape[1] == 2 else p, t)

    def _value(self) -> Any:
        if getattr(self.metric, "update_count", 2) > 1:
            return self.metric.compute()
        # Some need two samples. A copy is asked, since a computation that fails may leave a metric half read.
        try:
            return copy.deepcopy(self.metric).compute() if self.metric.update_count else math.nan
        except ValueError:
            return math.nan

    def empty(self) -> None:
        """Forget all counts."""
        self.metric.reset()


def meter(name: str, metric: Any, given: bool = False) -> Meter:
    """The interface for a metric of either library.

    Args:
        name: Of the metric.
        metric: The metric.
        given: Whether torchmetrics are given predictions and truths that the caller has prepared.
    """
    if hasattr(metric, "update") and hasattr(metric, "compute"):
        return TorchMeter(name, metric, given)
    if hasattr(metric, "update") and hasattr(metric, "get"):
        return RiverMeter(name, metric)
    raise ConfigError(
        f"the metric {name!r} is a {type(metric).__name__}, which is neither of torchmetrics (update, compute) "
        "nor of River (update, get). Give an instance of one of their metrics, for example river.metrics.MAE()."
    )


def _counts_pairs(metric: Any) -> bool:
    """Whether a metric of labels is a function of River's confusion matrix alone."""
    if not type(metric).__module__.startswith("river."):
        return False
    base = sys.modules["river.metrics.base"]
    return type(metric).update in (base.ClassificationMetric.update, base.BinaryMetric.update)


_BY_CLASS = ("StatScores", "ConfusionMatrix", "ExactMatch")
"""Families of torchmetrics that ask for classes only."""


def _torch_kind(metric: Any) -> tuple[Kind, bool]:
    """What a metric takes, and whether of two classes, by the classes that it, or one within it, is made of."""
    parts = metric.modules() if isinstance(metric, nn.Module) else ()
    bases = [base for part in parts for base in type(part).__mro__]
    names = {base.__name__ for base in bases if base.__module__.startswith("torchmetrics.classification")}
    for task in ("Multiclass", "Binary"):
        if any(name.startswith(task) for name in names):
            return ("labels" if names & {task + what for what in _BY_CLASS} else "probabilities"), task == "Binary"
    if any(name.startswith("Multilabel") for name in names):
        return "bits", False
    of_numbers = any(base.__module__.startswith("torchmetrics.regression") for base in bases)
    return ("numbers" if of_numbers else "given"), False


def _outline(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
