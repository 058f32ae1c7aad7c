"""Whether outputs are logits, and which metrics of torchmetrics have to know."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import nn
from torch.nn import functional

Squash = Literal["sigmoid", "softmax"]
"""What makes probabilities of logits."""

_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.binary_cross_entropy_with_logits)
_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss)

_BY_ORDER = {"MulticlassStatScores", "MulticlassConfusionMatrix", "MulticlassExactMatch"}
"""Metrics of torchmetrics that ask only which output is the largest, and those that are made of them."""


def on_logits(loss: Any) -> bool:
    """Whether a loss is known to be one on logits, of which logarithms of probabilities are a special case.

    Example:
        >>> on_logits(nn.CrossEntropyLoss()), on_logits(functional.binary_cross_entropy)
        (True, False)
    """
    while isinstance(loss, partial):
        loss = loss.func
    return isinstance(loss, _MODULES) or any(loss is known for known in _FUNCTIONS)


def squash_of(metric: Any) -> Squash | None:
    """How a metric of torchmetrics makes probabilities of what leaves [0, 1]; `None` where it leaves all as it is.

    Args:
        metric: Any metric; one around another is told by the one within.
    """
    found = {_squash(type(part)) for part in metric.modules()} if isinstance(metric, nn.Module) else set()
    return "softmax" if "softmax" in found else "sigmoid" if "sigmoid" in found else None


def _squash(kind: type) -> Squash | None:
    bases = (base for base in kind.__mro__ if base.__module__.startswith("torchmetrics.classification."))
    names = {base.__name__ for base in bases}
    if names & _BY_ORDER:
        return None
    if any(name.startswith("Multiclass") for name in names):
        return "softmax"
    return "sigmoid" if any(name.startswith(("Binary", "Multilabel")) for name in names) else None
