"""Classification and regression, one dictionary at a time."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from river import base
from torch import Tensor
from torch.nn import functional

from hamlearn.credit import Credit
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper, Schedule
from hamlearn.interop.river.core import Core, Module, Named, make_plan, require_count
from hamlearn.interop.river.encoding import Encoder, Standard, require_class, require_features, require_number

RATE = 0.05
"""The learning rate where none is given: near the best of a grid on most streams of standardized numbers."""


class _SeenClasses:
    """Cross-entropy over the classes that were seen so far; the others have no part in it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(y[: self.count], target)


@dataclass(eq=False, repr=False)
class _Choices:
    """What both estimators take; River copies an estimator by the names of these."""

    net: str = "mlp"
    hidden: int = 16
    module: Module | None = None
    lr: float | Schedule | None = None
    momentum: float = 0.0
    hyper: Hyper | None = None
    credit: Credit | None = None
    unit: float = 1.0
    capacity: int = 64
    seed: int = 0

    def _begin(self, loss: Any, outputs: int) -> None:
        """Nothing has been learned yet: the network is made when the first features are seen."""
        require_count("capacity", self.capacity)
        make = Named(self.net, self.hidden, outputs) if self.module is None else self.module
        rates = (self.lr, self.momentum, self.hyper)
        self._encoder = Encoder(self.capacity)
        self._plan = make_plan(make, loss, RATE, rates, self.credit, self.unit, self.seed)
        self._core: Core | None = None


@dataclass(eq=False, repr=False)
class HLClassifier(_Choices, base.Classifier):
    """A network that learns classes by Hamiltonian Learning, as a River classifier.

    Numbers are standardized on the way, texts become features of their own, features may appear and vanish,
    classes may appear. The network has an input for each feature that was learned from so far: when one appears,
    its weights are drawn to suit that many features, and everything learned before is kept. `predict_one` moves
    no state.

    Args:
        net: `"linear"`, `"mlp"`, `"rnn"` or `"gru"`.
        hidden: Neurons.
        module: A network of your own in place of `net`: a function from the number of features n to an `nn.Module`
            of a vector of n, or to an `hl.Network`. Its outputs are the logits of the classes, in the order in
            which they come. It is called again when features appear, and the new weights are taken from it.
        lr: Learning rate; `None` is 0.05.
        momentum: Momentum of the weights.
        hyper: Instead of `lr` and `momentum`: all of τ, η, β, φ and s.
        credit: What z carries between steps, for networks with a state; `None` is `hl.Cleared()`. Tokens that wait
            for an echo when a feature appears are dropped.
        unit: What counts as one unit of time, in the unit of `t` (seconds, for datetimes).
        capacity: Places for features; beyond them features share places, so that memory stays bounded.
        seed: Of the weights.
        max_classes: Places for classes, unless a `module` says how many there are.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> data = datasets.Phishing().take(300)
        >>> evaluate.progressive_val_score(data, HLClassifier(), metrics.Accuracy()).get() > 0.75
        True
    """

    max_classes: int = 32

    def __post_init__(self) -> None:
        self._classes: dict[Hashable, int] = {}
        self._loss = _SeenClasses()
        require_count("max_classes", self.max_classes)
        self._begin(self._loss, self.max_classes)

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Any, Any], y: Any, t: Any = None) -> None:
        """Learn that `x` is a `y`, at time `t` (a number or a datetime)."""
        # What is refused is refused before anything has moved.
        require_class(y)
        require_features(x)
        Core.require_time(self._core, t)
        if self._core is not None and y not in self._classes:
            self._check_room(x, y, self._core)
        self._classes.setdefault(y, len(self._classes))
        self._encoder.learn(x)
        u = vector(self._encoder, x)
        if self._core is None:
            self._core = Core(self._plan, len(u))
        self._loss.count = len(self._classes)
        self._core.learn(u, torch.tensor(self._classes[y]), t)

    def predict_proba_one(  # type: ignore[override]
        self, x: dict[Any, Any], t: Any = None
    ) -> dict[Any, float]:
        """Probabilities of the classes that were seen so far."""
        if self._core is None:
            return {}
        logits = self._core.predict(vector(self._encoder, x), t)[: len(self._classes)]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        return {label: weights[k] / sum(weights) for label, k in self._classes.items()}

    def _check_room(self, x: dict[Any, Any], y: Any, core: Core) -> None:
        number = len(self._classes) + 1
        if self.module is None and number > self.max_classes:
            raise ConfigError(
                f"{y!r} would be class number {number}, but max_classes={self.max_classes}. Raise it."
            )
        if self.module is not None and number > (outputs := len(core.predict(vector(self._encoder, x), None))):
            raise ConfigError(
                f"{y!r} would be class number {number}, but the module has {outputs} outputs. Give it as many as "
                "there may be classes."
            )


@dataclass(eq=False, repr=False)
class HLRegressor(_Choices, base.Regressor):
    """A network that learns numbers by Hamiltonian Learning, as a River regressor.

    The arguments are those of `HLClassifier`; a `module` has one output. Targets are standardized on the way,
    too, and learned by the Huber loss, which lets no outlier pull at full weight.

    Example:
        >>> from river import datasets, evaluate, metrics
        >>> data = datasets.TrumpApproval().take(300)
        >>> evaluate.progressive_val_score(data, HLRegressor(), metrics.MAE()).get() < 2
        True
    """

    def __post_init__(self) -> None:
        self._scale = Standard()
        self._begin(functional.huber_loss, 1)

    def learn_one(self, x: dict[Any, Any], y: float, t: Any = None) -> None:
        """Learn that `x` goes with `y`, at time `t` (a number or a datetime)."""
        # What is refused is refused before anything has moved.
        y = require_number(y)
        Core.require_time(self._core, t)
        self._encoder.learn(x)
        self._scale.update(y)
        u = vector(self._encoder, x)
        if self._core is None:
            self._core = Core(self._plan, len(u))
        self._core.learn(u, torch.tensor([self._scale.apply(y)]), t)

    def predict_one(self, x: dict[Any, Any], t: Any = None) -> float:
        """The number that goes with `x`; nothing moves."""
        if self._core is None:
            return 0.0
        (y,) = self._core.predict(vector(self._encoder, x), t)
        return self._scale.mean + self._scale.spread * y


def vector(encoder: Encoder, x: dict[Any, Any]) -> list[float]:
    """`x` as a vector of the features that were learned from so far; of one zero where there is none."""
    return encoder.encode(x)[: max(1, encoder.used)]
