"""One face for the metrics of torchmetrics and of River."""

from __future__ import annotations

import copy
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.evaluate import object_graph
from hamlearn.evaluate.logits import squash_of
from hamlearn.streams.values import shown

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""(y, target) to the pair (prediction, truth) that the metrics are to see."""

TRIED = 5
"""Pairs that a rehearsal shows before it stops and resumes, and after."""


class Adapter(ABC):
    """A metric that can be updated, read, written down, and put back exactly.

    Args:
        name: What it is called.
        metric: The metric of a library.
        prepare: As in `evaluate`.
    """

    def __init__(self, name: str, metric: Any, prepare: Prepare | None) -> None:
        self.name, self._metric, self._prepare = name, metric, prepare

    @abstractmethod
    def windowed(self, window: int) -> Adapter:
        """The same over the last `window` predictions."""

    def update(self, y: Any, target: Any) -> None:
        """Count one prediction.

        Raises:
            ConfigError: The metric does not take it; says why.
        """
        pairs = [self._prepare(y, target)] if self._prepare is not None else self._pairs(y, target)
        for prediction, truth in pairs:
            try:
                self.show(prediction, truth)
            # Whatever a library raises: its metrics say in many ways that pairs are not for them.
            except Exception as error:
                raise self._unfit(prediction, truth, error) from error

    @abstractmethod
    def _pairs(self, y: Any, target: Any) -> Iterable[tuple[Any, Any]]:
        """(prediction, truth) of one sample as the library takes them."""

    @abstractmethod
    def show(self, prediction: Any, truth: Any) -> None:
        """Count one pair as the library takes it."""

    @abstractmethod
    def kinds(self) -> Iterator[list[tuple[Any, Any]]]:
        """Pairs (prediction, truth) to rehearse with, one list for each kind that the metric may take."""

    @abstractmethod
    def value(self) -> float:
        """Its value now."""

    def state(self) -> dict[str, Any]:
        """All that it has counted, in JSON's terms."""
        # First the value: some metrics count anew, or fill in zeros, when they are read.
        with warnings.catch_warnings():
            # A metric that has counted nothing may warn of being read.
            warnings.simplefilter("ignore")
            value = _text(self.value())
        try:
            return {"parts": object_graph.dump(self._whole()), "value": value}
        except object_graph.NotPlainError as error:
            raise self._refused(str(error)) from error

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; a state that cannot be put back exactly leaves the metric as it was."""
        trial = copy.deepcopy(self)
        for adapter in (trial, self):
            try:
                object_graph.load(adapter._whole(), state["parts"])
                same = adapter.state() == state
            except (
                object_graph.NotPlainError,
                KeyError,
                TypeError,
                ValueError,
                IndexError,
                AttributeError,
            ) as error:
                raise self._damaged(str(error)) from error
            if not same:
                raise self._damaged("what was read is not what was written")

    def rehearse(self) -> None:
        """Stop and resume a copy in the middle of a few made-up pairs, and compare it with one that went on.

        Raises:
            ConfigError: It would not go on exactly; says why.
        """
        reason = "it takes neither labels, nor probabilities, nor numbers"
        for pairs in self.kinds():
            whole, again = self._copied(), self._copied()
            with warnings.catch_warnings():
                # A few made-up pairs may hold one class only, which some metrics warn of.
                warnings.simplefilter("ignore")
                found = _why_not(whole, pairs[:TRIED])
                if found is None:
                    self._go_on(whole, again, pairs[TRIED:])
                    return
            reason = found
        raise self._refused(reason)

    def _copied(self) -> Adapter:
        try:
            return copy.deepcopy(self)
        except Exception as error:
            raise self._refused(f"it cannot be copied ({type(error).__name__}: {error})") from error

    def _go_on(self, whole: Adapter, again: Adapter, pairs: list[tuple[Any, Any]]) -> None:
        try:
            state = json.loads(json.dumps(whole.state()))
            again.restore(state)
            for pair in pairs:
                for adapter in (whole, again):
                    adapter.show(*pair)
                same = _text(whole.value()) == _text(again.value()) and whole.state() == again.state()
                if not same:
                    raise self._refused("after a resume its value was another one")
        except ConfigError:
            raise
        except Exception as error:
            raise self._refused(f"{type(error).__name__}: {error}") from error

    def _whole(self) -> Any:
        """What is written down."""
        return self._metric

    @property
    def _kind(self) -> str:
        return f"{type(self._metric).__module__.partition('.')[0]}.{type(self._metric).__name__}"

    def _unfit(self, prediction: Any, truth: Any, error: Exception) -> ConfigError:
        return ConfigError(
            f"the metric {self.name!r} ({self._kind}) does not take {_outline(prediction)} as a prediction and "
            f"{_outline(truth)} as its truth ({type(error).__name__}: {error}). Choose one that fits the outputs, "
            'for several logits one of task="multiclass" or of River, or make of both what it takes by prepare.'
        )

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(
            f"the metric {self.name!r} ({self._kind}) cannot be saved and resumed exactly: {reason}. "
            "Choose another metric, for example MAE or Accuracy."
        )

    def _damaged(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"the state of the metric {self.name!r} cannot be put back ({reason}). "
            "Resume with the metric, and the version of its library, that it was saved with."
        )


class TorchAdapter(Adapter):
    """A torchmetrics metric: update(prediction, truth), compute().

    Args:
        name: What it is called.
        metric: The metric.
        prepare: As in `evaluate`.
        logits: Whether outputs are known to be logits. torchmetrics takes for logits what leaves [0, 1], which a
            single one may or may not do.
    """

    def __init__(self, name: str, metric: Any, prepare: Prepare | None, logits: bool = False) -> None:
        super().__init__(name, metric, prepare)
        self._logits, self._squash, self._shown = logits, squash_of(metric), 0

    def windowed(self, window: int) -> Adapter:
        """The same over the last `window` predictions."""
        from torchmetrics.wrappers import Running

        try:
            running = Running(self._metric.clone(), window)
        except ValueError as error:
            raise ConfigError(
                f"{type(self._metric).__name__} cannot forget, as a window needs ({error}). "
                "Use window=None, or another metric."
            ) from error
        if not self._forgets(running):
            raise ConfigError(
                f"{type(self._metric).__name__} cannot forget, as a window needs: it keeps every sample. "
                "Use window=None, another metric, or a number of thresholds where it takes one."
            )
        return TorchAdapter(self.name, running, self._prepare, self._logits)

    def _forgets(self, running: Any) -> bool:
        """Whether a window takes a few pairs that the metric by itself takes."""
        with warnings.catch_warnings():
            # A few made-up pairs may hold one class only, which some metrics warn of.
            warnings.simplefilter("ignore")
            for pairs in self.kinds():
                if _why_not(TorchAdapter(self.name, self._metric.clone(), None), pairs) is None:
                    return _why_not(TorchAdapter(self.name, running.clone(), None), pairs) is None
        # These pairs are not for it: whether it forgets is seen by those that come.
        return True

    def _pairs(self, y: Any, target: Any) -> Iterable[tuple[Any, Any]]:
        if isinstance(y, Tensor) and y.dim() == 1 and target.dim() == 0:
            # Scores of classes without a batch dimension: torchmetrics wants one.
            y, target = y.unsqueeze(0), target.unsqueeze(0)
        return [(self._probabilities(y), target)]

    def _probabilities(self, y: Any) -> Any:
        if self._squash is None or not isinstance(y, Tensor) or not y.is_floating_point():
            return y
        if self._logits:
            # An output without classes in its second dimension is left for the metric to refuse.
            return y.sigmoid() if self._squash == "sigmoid" else y.softmax(1) if y.dim() > 1 else y
        if bool(((y < 0) | (y > 1)).any()):
            made = "y.sigmoid(), target" if self._squash == "sigmoid" else "y.softmax(-1)[None], target[None]"
            raise ConfigError(
                f"the metric {self.name!r} counts probabilities, but the output is {shown(y.tolist())}, and the "
                "loss does not tell whether that is a logit. Make probabilities of it: "
                f"prepare=lambda y, target: ({made}). Or learn by a loss on logits, for example cross_entropy."
            )
        return y

    def show(self, prediction: Any, truth: Any) -> None:
        """Count one pair as the library takes it."""
        self._metric.update(prediction, truth)
        self._shown += 1

    def kinds(self) -> Iterator[list[tuple[Any, Any]]]:
        """Scores and classes, one output or several labels and bits, or numbers."""
        base = getattr(self._metric, "base_metric", self._metric)
        counts = [getattr(base, name, None) for name in ("num_classes", "num_labels")]
        classes = next((n for n in counts if isinstance(n, int)), 2)
        generator = torch.Generator().manual_seed(0)
        y = torch.rand(2 * TRIED, classes, generator=generator)
        number = torch.rand(2 * TRIED, generator=generator)
        kind = torch.arange(2 * TRIED) % classes
        bits = torch.arange(2 * TRIED) % 2
        yield [(y[k : k + 1], kind[k : k + 1]) for k in range(2 * TRIED)]
        yield [(y[k : k + 1], bits[k].expand(1, classes)) for k in range(2 * TRIED)]
        yield [(number[k : k + 1], bits[k : k + 1]) for k in range(2 * TRIED)]
        yield [(number[k : k + 1], number[k - 1 : k or None]) for k in range(2 * TRIED)]

    def value(self) -> float:
        """Its value now; NaN where the metric needs another sample for one."""
        if self._shown < 2 and not self._computable():
            return math.nan
        return float(self._metric.compute())

    def _computable(self) -> bool:
        if not isinstance(self._metric, nn.Module):
            return True
        # A copy is asked: one that cannot be computed yet may be left half read.
        trial: Any = copy.deepcopy(self._metric)
        try:
            trial.compute()
        except ValueError:
            return False
        return True


class RiverAdapter(Adapter):
    """A River metric: update(truth, prediction), get(), one Python value at a time."""

    def __init__(self, name: str, metric: Any, prepare: Prepare | None, window: int | None = None) -> None:
        super().__init__(name, metric, prepare)
        self._window = window
        self._held: deque[tuple[Any, Any]] = deque()

    def windowed(self, window: int) -> Adapter:
        """The same over the last `window` predictions."""
        if not hasattr(self._metric, "revert") or not self._forgets():
            raise ConfigError(
                f"{type(self._metric).__name__} cannot forget, as a window needs. "
                "Use window=None, or another metric."
            )
        return RiverAdapter(self.name, self._metric.clone(), self._prepare, window)

    def show(self, prediction: Any, truth: Any) -> None:
        """Count one pair as the library takes it."""
        self._metric.update(truth, prediction)
        if self._window is not None:
            self._held.append((truth, prediction))
            if len(self._held) > self._window:
                self._metric.revert(*self._held.popleft())

    def kinds(self) -> Iterator[list[tuple[Any, Any]]]:
        """Labels, probabilities or numbers, as the metric asks for them."""
        if not hasattr(self._metric, "requires_labels"):
            yield [(0.5 + 0.25 * k, 0.75 + 0.125 * (k % 3)) for k in range(2 * TRIED)]
        elif self._metric.requires_labels:
            yield [(k % 2, int(k % 3 == 0)) for k in range(2 * TRIED)]
        else:
            yield [({0: 1 - k / 16, 1: k / 16}, k % 2) for k in range(2 * TRIED)]

    def _forgets(self) -> bool:
        """Whether a few pairs that were counted and taken back leave nothing behind."""
        pairs = next(self.kinds())
        through, fresh, all_of_them = (self._of(window) for window in (3, None, None))
        if _why_not(all_of_them, pairs) is not None:
            # These pairs are not for it: whether it forgets is seen by those that `prepare` makes.
            return True
        if _why_not(through, pairs) is not None or _why_not(fresh, pairs[-3:]) is not None:
            return False
        return math.isclose(through.value(), fresh.value(), rel_tol=1e-9, abs_tol=1e-9)

    def _of(self, window: int | None) -> RiverAdapter:
        return RiverAdapter(self.name, self._metric.clone(), None, window)

    def value(self) -> float:
        """Its value now."""
        return float(self._metric.get())

    def _whole(self) -> Any:
        return {"metric": self._metric, "held": self._held}

    def _pairs(self, y: Tensor, target: Tensor) -> Iterable[tuple[Any, Any]]:
        if not hasattr(self._metric, "requires_labels"):
            if y.numel() != target.numel():
                raise SampleError(
                    f"{self.name} compares numbers one by one, but the output has {y.numel()} and the target "
                    f"{target.numel()}. Use a metric of classification, or as many outputs as targets."
                )
            yield from zip(y.flatten().tolist(), target.flatten().tolist(), strict=True)
            return
        truths = [self._class(truth) for truth in target.flatten().tolist()]
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

    def _class(self, truth: float) -> int:
        if not math.isfinite(truth) or int(truth) != truth:
            raise SampleError(
                f"{self.name} counts classes, but the target is {truth}, which is no whole number. "
                "Use a metric of regression, for example MAE."
            )
        return int(truth)


def _why_not(adapter: Adapter, pairs: list[tuple[Any, Any]]) -> str | None:
    """Why a metric is not for pairs like these; `None` where it is."""
    try:
        for pair in pairs:
            adapter.show(*pair)
    # Whatever a library raises: its metrics say in many ways that pairs are not for them.
    except Exception as error:
        return f"it cannot be given a prediction and a truth ({type(error).__name__}: {error})"
    try:
        adapter.value()
    except Exception as error:
        return f"it does not come to a single number ({type(error).__name__}: {error})"
    return None


def _outline(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


def _text(value: float) -> str:
    # As text, NaN is equal to itself, and no digit is lost.
    return repr(float(value))
