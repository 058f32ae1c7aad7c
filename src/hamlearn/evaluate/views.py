"""What a metric is given: one table from the loss and the shapes to predictions and truths.

Outputs mean different things under different losses. `LOSSES` says what they mean, and `View` brings outputs and
targets of any shape into one form, samples first. What both leave open raises an error with a remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hamlearn.errors import ConfigError, SampleError


class Outputs(NamedTuple):
    """What the outputs under a loss are.

    Attributes:
        several: Whether there is one output for each class, along axis 1.
        probability: Turns outputs into probabilities; `None`: the loss does not tell how.
        threshold: A single output above it is class 1; `None`: the loss does not tell.
        codes: The two values of a target of a single output; `None`: the loss is one of numbers.
    """

    several: bool = False
    probability: Callable[[Tensor], Tensor] | None = None
    threshold: float | None = None
    codes: tuple[int, int] | None = None

    @property
    def metric(self) -> str:
        """The name of the metric of River that fits."""
        return "MAE" if self.codes is None else "Accuracy"


def _softmax(y: Tensor) -> Tensor:
    # Of log-probabilities, which nll_loss takes, the softmax is their exponential.
    return y.softmax(-1)


def _itself(y: Tensor) -> Tensor:
    return y


_OF_NUMBERS = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)
_OF_LOGITS = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)
LOSSES: tuple[tuple[tuple[Any, ...], Outputs], ...] = (
    ((functional.cross_entropy, nn.CrossEntropyLoss), Outputs(True, _softmax, None, (0, 1))),
    ((functional.nll_loss, nn.NLLLoss), Outputs(True, _softmax, None, (0, 1))),
    ((functional.multi_margin_loss, nn.MultiMarginLoss), Outputs(True, None, None, (0, 1))),
    ((functional.binary_cross_entropy, nn.BCELoss), Outputs(False, _itself, 0.5, (0, 1))),
    (_OF_LOGITS, Outputs(False, torch.sigmoid, 0.0, (0, 1))),
    ((functional.soft_margin_loss, nn.SoftMarginLoss), Outputs(False, torch.sigmoid, 0.0, (-1, 1))),
    (_OF_NUMBERS, Outputs()),
)
"""Functions and modules, and what outputs under them are."""


def outputs_of(loss: Any) -> Outputs | None:
    """The table's entry for a loss; `None` for a loss that it does not have, as a function of your own.

    Example:
        >>> outputs_of(nn.BCELoss()).threshold
        0.5
    """
    while isinstance(loss, partial):
        loss = loss.func
    for losses, outputs in LOSSES:
        if any(loss is one or (isinstance(one, type) and isinstance(loss, one)) for one in losses):
            return outputs
    return None


class View:
    """Outputs and targets of a learner as the metrics see them.

    Args:
        loss: The loss of the learner; `None` if it has none.
    """

    def __init__(self, loss: Any = None) -> None:
        self._known = outputs_of(loss) is not None
        self._outputs = outputs_of(loss) or Outputs()
        self.several = self._outputs.several

    def predicted(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The class of each decision, and its probability if the loss tells it, without a target."""
        y = y if y.dim() > 1 else y.reshape(1, -1)
        outputs = _decisions(y) if self.several else y.flatten(1).unsqueeze(-1)
        labels = self._decided(outputs)
        if self._outputs.probability is None:
            return labels, None
        return labels, self._chances(outputs).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def numbers(self, y: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Predictions and truths of regression, each `[samples, numbers of a sample]`."""
        y, target = _batched(y, target)
        if y.numel() != target.numel():
            raise SampleError(
                f"a metric of regression compares numbers one by one, but the output has {y.numel()} and the "
                f"target {target.numel()}. Use a metric of classification, or as many outputs as targets."
            )
        return y.flatten(1), target.reshape(y.shape).flatten(1)

    def bits(self, y: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Of labels that may all be true: the probability of each, and 0 or 1."""
        y, target = self.numbers(y, target)
        return (self._outputs.probability or _itself)(y), self._coded(target)

    def labels(self, y: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Predicted and true classes, each `[samples, decisions of a sample]`."""
        outputs, truth = self._classes(y, target)
        return self._decided(outputs), truth

    def probabilities(self, y: Any, target: Any) -> tuple[Tensor, Tensor]:
        """The probability of each class, `[samples, decisions, classes]`, and the true classes."""
        outputs, truth = self._classes(y, target)
        return self._chances(outputs), truth

    def _decided(self, outputs: Tensor) -> Tensor:
        """The likeliest class of each decision; a single output says whether it is class 1."""
        if outputs.shape[-1] > 1:
            return outputs.argmax(-1)
        single = outputs.squeeze(-1)
        if not single.is_floating_point():
            # Whole numbers are classes already.
            return single.long()
        return (single > (self._outputs.threshold or 0.0)).long()

    def _chances(self, outputs: Tensor) -> Tensor:
        """The probability of each class."""
        probability = self._outputs.probability
        if outputs.shape[-1] == 1 and probability is not None:
            p = probability(outputs)
            return torch.cat([1 - p, p], -1)
        if outputs.shape[-1] > 1 and _is_distribution(outputs):
            return outputs
        if probability is None:
            raise ConfigError(
                "the metric takes probabilities, but the loss does not tell how outputs become such. Pass for "
                "example prepare=lambda y, target: (y.softmax(-1), target) for torchmetrics, and for River a "
                "dictionary from classes to probabilities. Or learn with a loss on logits, such as cross_entropy."
            )
        return probability(outputs)

    def _classes(self, y: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Outputs `[samples, decisions, classes]`, of which there may be a single one, and true classes."""
        y, target = _batched(y, target)
        if y.shape == target.shape and not y.is_floating_point():
            return y.flatten(1).unsqueeze(-1), _whole(target).flatten(1)
        if y.dim() == target.dim() + 1 and self._has_class_axis(y, target):
            return _decisions(y), _whole(target).reshape(len(y), -1)
        if y.numel() != target.numel():
            raise _unclear(y, target)
        target = target.reshape(y.shape)
        if y.shape[1] == 1 and not self.several:
            if self._outputs.threshold is None:
                raise ConfigError(
                    "the loss does not tell above which value a single output means class 1. Pass "
                    "prepare=lambda y, target: (int(y > 0), int(target > 0)) for targets -1 and 1 or logits, "
                    "y > 0.5 for targets 0 and 1 or probabilities. Or use a metric of regression, such as MAE."
                )
            return y.flatten(1).unsqueeze(-1), self._coded(target.flatten(1))
        if not self.several:
            _require_one_hot(target)
        # One-hot targets, or under cross_entropy a probability of each class: the likeliest is the truth.
        return _decisions(y), target.argmax(1).reshape(len(y), -1)

    def _has_class_axis(self, y: Tensor, target: Tensor) -> bool:
        """Whether axis 1 of `y` is that of the classes, which the target does not have."""
        if y.shape[2:] != target.shape[1:]:
            return False
        # A loss of one's own may have the classes last.
        if not self._known and y.dim() > 2 and y.shape[:-1] == target.shape:
            raise _unclear(y, target)
        return y.shape[1] > 1

    def _coded(self, target: Tensor) -> Tensor:
        """0 or 1 for targets that are 0 and 1, or -1 and 1."""
        if target.dtype is torch.bool:
            return target.long()
        low, high = self._outputs.codes or (0, 1)
        wrong = target[(target != low) & (target != high)]
        if wrong.numel():
            raise SampleError(
                f"a metric of two classes takes targets {low} and {high}, but one is {wrong[0].item():g}. Use a "
                "metric of regression, for example MAE, or make classes by prepare."
            )
        return (target == high).long()


def _batched(y: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Both with samples as the first axis: an output of one axis belongs to one sample."""
    if not isinstance(y, Tensor) or not isinstance(target, Tensor):
        raise ConfigError(
            f"a metric compares two tensors, but the output is a {type(y).__name__} and the target a "
            f"{type(target).__name__}. Choose what it is to compare by prepare=lambda y, target: (…, …)."
        )
    if y.dim() < 2:
        y = y.reshape(1, -1)
        # A class number may have an axis of its own, or none.
        return y, target.reshape(1) if target.numel() == 1 < y.numel() else target.reshape(1, -1)
    if target.dim() == y.dim() and target.shape[1] == 1 < y.shape[1]:
        return y, target.squeeze(1)
    return y, target.reshape(1) if target.dim() == 0 else target


def _decisions(y: Tensor) -> Tensor:
    """Outputs with classes last, and between samples and classes one axis of all decisions of a sample."""
    return y.movedim(1, -1).reshape(len(y), -1, y.shape[1])


def _whole(target: Tensor) -> Tensor:
    if target.is_floating_point() and not bool((target == target.floor()).all()):
        raise SampleError(
            f"a metric of classes takes whole numbers as targets, but there is {target.flatten()[0].item():g}. "
            "Use a metric of regression, for example MAE."
        )
    return target.long()


def _require_one_hot(target: Tensor) -> None:
    """Raise unless along axis 1 there is a single 1, and 0 (or -1) elsewhere."""
    others = target[target != 1]
    alike = bool((others == 0).all()) or bool((others == -1).all())
    if not alike or not bool(((target == 1).sum(1) == 1).all()):
        raise ConfigError(
            f"targets of shape {tuple(target.shape)} are several labels, or numbers, and not one class each: use "
            'a metric of regression, torchmetrics with task="multilabel", or say which class is meant by '
            "prepare=lambda y, target: (int(y.argmax()), int(target.argmax()))."
        )


def _is_distribution(outputs: Tensor) -> bool:
    return bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < 1e-3).all())


def _unclear(y: Tensor, target: Tensor) -> ConfigError:
    return ConfigError(
        f"outputs of shape {tuple(y.shape)} and targets of shape {tuple(target.shape)} do not tell which axis is "
        "that of the classes: it is axis 1, as in torch.nn.functional.cross_entropy. Give each metric what it "
        "takes by prepare=lambda y, target: (…, …)."
    )
