"""What is learned: classes or numbers, each with its target, its loss and its mixture."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.estimators.counts import ClassCounts, NumberCounts
from hamlearn.estimators.encoder import Layout
from hamlearn.estimators.mixing import ClassMixer, NumberMixer, follow
from hamlearn.estimators.team import Member
from hamlearn.loops.bound import Tensors

CLASS_MEMBERS = (
    Member("z", (), "sgd", 0.05),
    Member("z", (16,), "sgd", 0.05, "tanh"),
    Member("zl", (64,), "sgd", 0.05, "tanh"),
    Member("c", (), "sgd", 0.02),
    Member("q", (), "sgd", 0.02),
    Member("q", (128, 64), "sgd", 0.03),
    Member("ql", (64,), "sgd", 0.05, "tanh"),
    Member("z", (64,), "rms", 0.003),
    Member("q", (64,), "rms", 0.0001),
    Member("q", (64,), "rms", 0.001),
    Member("ql", (64,), "rms", 0.003),
    Member("q", (128, 64), "rms", 0.001),
    Member("q", (256, 128), "rms", 0.0003),
    Member("Q", (128, 64), "rms", 0.001),
    Member("h", (), "rms", 0.001),
)
NUMBER_MEMBERS = (
    Member("z", (16,), "sgd", 0.02, "tanh"),
    Member("ql", (), "sgd", 0.003),
    Member("q", (128, 64), "sgd", 0.02),
    Member("ql", (128, 64), "sgd", 0.02, "tanh"),
    Member("z", (64,), "rms", 0.003),
    Member("q", (64,), "rms", 0.0001),
    Member("q", (64,), "rms", 0.001),
    Member("ql", (64,), "rms", 0.003),
    Member("q", (128, 64), "rms", 0.001),
    Member("q", (256, 128), "rms", 0.0003),
    Member("Q", (128, 64), "rms", 0.001),
    Member("h", (), "rms", 0.001),
)


class ClassTask:
    """One of several classes, as a one-hot row.

    Args:
        outputs: Places for classes.

    Attributes:
        carry: Nothing: the target needs no scale.
        latest: The target that was learned last.
        constants: 0 for classes that have been seen, very negative for the others.
    """

    members = CLASS_MEMBERS
    dtype = torch.float32

    def __init__(self, outputs: int) -> None:
        self.outputs, self.width = outputs, outputs
        self.mixer = ClassMixer(len(self.members), outputs)
        self.counted = outputs
        self.carry: list[Tensor] = []
        self.latest = torch.zeros(outputs)
        self.mask = torch.full((outputs,), CLOSED)
        self.pace = torch.ones(1)
        self.constants = [self.mask, self.pace]

    def counts(self, layout: Layout) -> ClassCounts:
        """What targets came with each value, of nothing yet."""
        return ClassCounts(self.width, layout.numbers, layout.categories, layout.counted > 0)

    def step(self, carry: Tensors, y: Tensor, last: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The target, and the last one that was known before it."""
        return [], [y, last]

    def before(self, carry: Tensors, last: Tensor) -> list[Tensor]:
        """What a step finds out before the target is known."""
        return [last]

    def mixed(
        self, carry: Tensors, logits: Tensor, row: Tensors, constants: Tensors
    ) -> tuple[Tensors, list[Tensor]]:
        """The mixture after a target, and the answer from before."""
        target, last = row
        new, answer = self.mixer.step(carry, logits, last, constants[0], target, constants[1])
        return new, [answer]

    def answer(self, carry: Tensors, logits: Tensor, row: Tensors, constants: Tensors) -> list[Tensor]:
        """The answer: probabilities; those of all members; and what to keep of a row whose label comes later."""
        experts, _, answer = self.mixer.answer(carry, logits, row[0], constants[0])
        return [answer, experts, logits]

    def restored(self, kept: Tensor, row: Tensors) -> Tensor:
        """The outputs of the networks from what was kept of them; they may not have known all classes."""
        outputs = torch.full((len(kept), self.outputs), CLOSED)
        outputs[:, : kept.shape[1]] = kept
        return outputs

    def judge(self, before: Tensor, answer: np.ndarray, y: np.ndarray, row: Tensors) -> None:
        """Nothing: there are no intervals."""

    def moved(self, answers: np.ndarray, others: np.ndarray) -> float:
        """How much probability lies on other classes, on average."""
        return float(np.abs(answers - others).sum(1).mean() / 2)

    @staticmethod
    def loss(y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of all members; they share no weights, so each has its own gradient."""
        return -(torch.log_softmax(y, -1) * target).sum()


CLOSED = -1e4
"""Logit of a class that has not been seen."""


class NumberTask:
    """One number, in units of its running deviation.

    Attributes:
        carry: Count, mean, sum of squared differences, least and largest value of the target.
        latest: The target that was learned last.
    """

    members = NUMBER_MEMBERS
    dtype = torch.float64

    def __init__(self, outputs: int = 1) -> None:
        self.outputs, self.width = outputs, 1
        self.mixer = NumberMixer(len(self.members))
        self.counted = 1
        self.carry = [torch.zeros(5, dtype=torch.float64)]
        self.latest = torch.zeros(1, dtype=torch.float64)
        self.mask = torch.zeros(1)
        self.pace = torch.ones(1)
        self.constants = [self.mask, self.pace]

    def counts(self, layout: Layout) -> NumberCounts:
        """What targets came with each value, of nothing yet."""
        return NumberCounts(3, layout.numbers, layout.categories, layout.counted > 0)

    def step(self, carry: Tensors, y: Tensor, last: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The moments with this target; the target to learn, then the last target and others from `before`."""
        count, mean, squares, least, largest = carry[0].unbind()
        (value,) = y.unbind()
        new_count = count + 1
        away = value - mean
        new_mean = mean + away / new_count
        new_squares = squares + away * (value - new_mean)
        first = count < 0.5
        least = torch.where(first, value, torch.minimum(least, value))
        largest = torch.where(first, value, torch.maximum(largest, value))
        new = torch.stack([new_count, new_mean, new_squares, least, largest])
        _, scale = _units(new)
        learned = ((value - new_mean) / scale).clamp(-10.0, 10.0)
        return [new], [learned.float().reshape(1), *self.before(carry, last), y]

    def before(self, carry: Tensors, last: Tensor) -> list[Tensor]:
        """The last target and the range of answers, in units of the deviation; mean and deviation."""
        mean, scale = _units(carry[0])
        _, _, _, least, largest = carry[0].unbind()
        margin = 0.1 * (largest - least)
        reach = torch.stack([(least - margin - mean) / scale, (largest + margin - mean) / scale])
        return [((last - mean) / scale).float(), reach.float(), torch.stack([mean, scale])]

    def mixed(
        self, carry: Tensors, outputs: Tensor, row: Tensors, constants: Tensors
    ) -> tuple[Tensors, list[Tensor]]:
        """The mixture after a target, and the answer from before."""
        _, last, reach, units, y = row
        target = ((y[0] - units[0]) / units[1]).float()
        widths = carry[-1]
        new, answer = self.mixer.step(carry, outputs.reshape(-1), last, reach, target, constants[1])
        half = widths[:-1] * widths[-1]
        return new, [(answer.double() * units[1] + units[0]).reshape(1), half.double() * units[1]]

    def answer(self, carry: Tensors, outputs: Tensor, row: Tensors, constants: Tensors) -> list[Tensor]:
        """The answer, its half widths, what all members say, and what to keep of a row with a late label."""
        last, reach, units = row
        experts, _, answer = self.mixer.answer(carry, outputs.reshape(-1), last, reach)
        half = carry[-1][:-1] * carry[-1][-1]
        answers = torch.cat([answer.reshape(1), half]).double() * units[1]
        members = experts.double() * units[1] + units[0]
        return [torch.cat([answers[:1] + units[0], answers[1:]]), members, outputs.double() * units[1] + units[0]]

    def restored(self, kept: Tensor, row: Tensors) -> Tensor:
        """The outputs of the networks, in the units of now, from what was kept of them."""
        mean, scale = row[2]
        return ((kept - mean) / scale).float()

    def judge(self, before: Tensor, answer: np.ndarray, y: np.ndarray, row: Tensors) -> None:
        """Let the intervals, `before` this target, follow an answer that was given some rows ago."""
        away = abs(float(y[0]) - float(answer[0]))
        _, scale = row[2]
        missed = torch.from_numpy(away > answer[1:])
        error = torch.tensor([away / float(scale)])
        self.mixer.carry[-1].copy_(follow(before, error, missed, self.pace))

    def moved(self, answers: np.ndarray, others: np.ndarray) -> float:
        """How far the answers are from others, on average, in deviations of the target."""
        _, scale = _units(self.carry[0])
        return float(np.abs(answers[:, 0] - others[:, 0]).mean() / float(scale))

    @staticmethod
    def loss(y: Tensor, target: Tensor) -> Tensor:
        """Huber's loss of all members."""
        return nn.functional.huber_loss(y, target.expand_as(y), reduction="sum")


def _units(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the target; before there is a deviation, the size of the mean."""
    count, mean, squares, _, _ = moments.unbind()
    deviation = (squares / count.clamp(min=1.0)).sqrt()
    size = mean.abs().clamp(min=1e-3)
    return mean, torch.where(deviation > 1e-9 * size, deviation, size)
