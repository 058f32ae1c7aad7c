"""Classification and regression, one dictionary at a time."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from river import base
from torch import Tensor
from torch.nn import functional

from hamlearn.errors import ConfigError
from hamlearn.interop.river.core import Core
from hamlearn.interop.river.encoding import Encoder, Standard


class _SeenClasses:
    """Cross-entropy over the classes that were seen so far; the others have no part in it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(y[: self.count], target)


class HLClassifier(base.Classifier):
    """A network that learns classes by Hamiltonian Learning, as a River classifier.

    Numbers are standardized as they come, texts become features of their own, features may appear and vanish,
    classes may appear. `predict_one` moves no state. With time stamps `t`, choose `unit` so that η times the
    time between two samples stays below 1.

    Args:
        net: `"linear"`, `"mlp"`, `"rnn"` or `"gru"`.
        hidden: Neurons.
        beta: β.
        eta: η.
        tau: τ of samples without time stamp.
        unit: What counts as one unit of time, in the unit of `t` (seconds, for datetimes).
        capacity: Places for features; beyond them features share places, so that memory stays bounded.
        max_classes: Places for classes.
        seed: Of the weights.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> data = datasets.Phishing().take(300)
        >>> evaluate.progressive_val_score(data, HLClassifier(), metrics.Accuracy()).get() > 0.75
        True
    """

    def __init__(
        self,
        net: str = "mlp",
        hidden: int = 16,
        beta: float = 0.05,
        eta: float = 0.5,
        tau: float = 1.0,
        unit: float = 1.0,
        capacity: int = 64,
        max_classes: int = 32,
        seed: int = 0,
    ) -> None:
        self.net, self.hidden = net, hidden
        self.beta, self.eta, self.tau, self.unit = beta, eta, tau, unit
        self.capacity, self.max_classes, self.seed = capacity, max_classes, seed
        self._encoder = Encoder(capacity)
        self._classes: dict[Hashable, int] = {}
        self._core: Core | None = None
        self._loss = _SeenClasses()

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Any, Any], y: Any, t: Any = None) -> None:
        """Learn that `x` is a `y`, at time `t` (a number or a datetime)."""
        if y not in self._classes:
            if len(self._classes) == self.max_classes:
                raise ConfigError(
                    f"{y!r} would be class number {self.max_classes + 1}, but "
                    f"max_classes={self.max_classes}. Raise it."
                )
            self._classes[y] = len(self._classes)
        if self._core is None:
            sizes, rates = (self.capacity, self.max_classes), (self.tau, self.eta, self.beta)
            self._core = Core(sizes, self._loss, self.net, self.hidden, rates, self.unit, self.seed)
        self._encoder.learn(x)
        self._loss.count = len(self._classes)
        self._core.learn(self._encoder.encode(x), torch.tensor(self._classes[y]), t)

    def predict_proba_one(  # type: ignore[override]
        self, x: dict[Any, Any], t: Any = None
    ) -> dict[Any, float]:
        """Probabilities of the classes that were seen so far."""
        if self._core is None:
            return {}
        logits = self._core.predict(self._encoder.encode(x), t)[: len(self._classes)]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        return {label: weights[k] / sum(weights) for label, k in self._classes.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._core is not None:
            # The learner must ask the very object that this classifier updates.
            self._loss = self._core._made_of[1]


class HLRegressor(base.Regressor):
    """A network that learns numbers by Hamiltonian Learning, as a River regressor.

    The arguments are those of `HLClassifier`; targets are standardized as they come, too.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> data = datasets.TrumpApproval().take(300)
        >>> evaluate.progressive_val_score(data, HLRegressor(), metrics.MAE()).get() < 2
        True
    """

    def __init__(
        self,
        net: str = "mlp",
        hidden: int = 16,
        beta: float = 0.05,
        eta: float = 0.5,
        tau: float = 1.0,
        unit: float = 1.0,
        capacity: int = 64,
        seed: int = 0,
    ) -> None:
        self.net, self.hidden = net, hidden
        self.beta, self.eta, self.tau, self.unit = beta, eta, tau, unit
        self.capacity, self.seed = capacity, seed
        self._encoder = Encoder(capacity)
        self._scale = Standard()
        self._core: Core | None = None

    def learn_one(self, x: dict[Any, Any], y: float, t: Any = None) -> None:
        """Learn that `x` goes with `y`, at time `t` (a number or a datetime)."""
        if self._core is None:
            rates = (self.tau, self.eta, self.beta)
            loss = functional.mse_loss
            self._core = Core((self.capacity, 1), loss, self.net, self.hidden, rates, self.unit, self.seed)
        self._encoder.learn(x)
        self._scale.update(float(y))
        target = torch.tensor([self._scale.apply(float(y))])
        self._core.learn(self._encoder.encode(x), target, t)

    def predict_one(self, x: dict[Any, Any], t: Any = None) -> float:
        """The number that goes with `x`; nothing moves."""
        if self._core is None:
            return 0.0
        (y,) = self._core.predict(self._encoder.encode(x), t)
        return self._scale.mean + self._scale.spread * y
