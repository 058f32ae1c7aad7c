"""What the members say, as one answer: weights that follow who was right lately, with probabilities or intervals.

All of it is written as pure steps over tensors, which are compiled with the encoder into one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.loops.bound import Tensors

SHARE = 0.001
"""What each sample gives back to all members alike: the best member may change."""
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Coverages of the intervals that are followed on line."""
RATE = 0.1
"""Of the exponential weights of numbers, by the squared error in units of what it usually is."""
FORGET = 0.9995
"""What recursive least squares keeps from one sample to the next."""
RIDGE = 0.1
"""How far its weights may be from equal ones at first."""
_SLOW = 0.999
_LEAST = 1e-4


def shared(weights: Tensor, pace: Tensor | float = 1.0) -> Tensor:
    """Weights of sum 1, of which each member keeps a least share (Herbster and Warmuth's fixed share)."""
    share = SHARE * pace
    return (1 - share) * weights / weights.sum() + share / len(weights)


def pace_of(ahead: int) -> float:
    """How far a mixture moves by a target after which `ahead` rows were answered: at once, by 1.

    What helped so many rows ago may not help now, and the rows in between say much the same: by less.
    """
    return 1 / (1 + ahead / 30)


class ClassMixer:
    """Mixes probabilities by fixed-share exponential weights, by weighted logarithms, and both by fixed share.

    Two simple members are added here: the last class, and the classes as often as they came.

    Args:
        members: How many networks there are.
        classes: Places for classes.
    """

    simple = ("last class", "frequency of the classes")

    def __init__(self, members: int, classes: int) -> None:
        count = members + 2
        self.members, self.classes = members, classes
        self.carry = [
            torch.full((count,), 1 / count),  # weights of the members
            torch.full((count,), 1 / count),  # exponents of the logarithmic mixture
            torch.full((2,), 0.5),  # weights of the two mixtures
            torch.zeros(classes),  # how often each class came, slowly forgotten
            torch.zeros(count),  # log loss of each member, slowly forgotten
        ]

    def answer(self, carry: Tensors, logits: Tensor, last: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities of all members, of the two mixtures, and of the whole.

        Args:
            carry: Weights.
            logits: Of the networks.
            last: The last class, one-hot.
            mask: 0 for classes that have been seen, very negative for all others.
        """
        weights, exponents, halves, often, _ = carry
        opened = torch.exp(mask)
        even = opened / opened.sum()
        p = torch.softmax(logits + mask, -1)
        # A member that has diverged says nothing.
        p = torch.where(p.sum(-1, keepdim=True) > 0.5, p, even)
        seen = often.sum()
        usual = torch.where(seen > 0, often / seen.clamp(min=_LEAST), even)
        before = torch.where(last.sum() > 0, 0.98 * last + 0.02 * even, even)
        p = torch.cat([p, before[None], (0.98 * usual + 0.02 * even)[None]])
        by_weight = weights @ p
        by_logarithm = torch.softmax(exponents @ p.clamp(min=_LEAST).log() + mask, -1)
        both = torch.stack([by_weight, by_logarithm])
        return p, both, halves @ both

    def step(
        self, carry: Tensors, logits: Tensor, last: Tensor, mask: Tensor, target: Tensor, pace: Tensor
    ) -> tuple[Tensors, Tensor]:
        """The carry after the target is known, and the answer from before; a late target moves it by less."""
        weights, exponents, halves, often, losses = carry
        p, both, answer = self.answer(carry, logits, last, mask)
        given = (p * target).sum(-1).clamp(_LEAST, 1.0)
        new_weights = shared(weights * given.pow(0.5 * pace), pace)
        away = (target - both[1]) * torch.exp(mask)
        new_exponents = (exponents + 0.002 * pace * (p.clamp(min=_LEAST).log() @ away)).clamp(min=0.0)
        new_halves = shared(halves * (both * target).sum(-1).clamp(_LEAST, 1.0).pow(pace), pace)
        new_losses = _SLOW * losses - (1 - _SLOW) * given.log()
        return [new_weights, new_exponents, new_halves, 0.998 * often + 0.002 * target, new_losses], answer

    def shares(self) -> Tensor:
        """The share of each member in the answer."""
        weights, exponents, halves, *_ = self.carry
        return halves[0] * weights + halves[1] * exponents / exponents.sum().clamp(min=_LEAST)

    def lost(self, index: int) -> bool:
        """Whether a member is far behind the guess by frequency: it has diverged."""
        losses = self.carry[4]
        return not float(losses[index]) < 2 * float(losses[-1]) + 1

    def best_first(self) -> list[int]:
        """The networks, by their latest losses."""
        return self.carry[4][: self.members].argsort().tolist()

    def forget(self, index: int) -> None:
        """Judge a member as if it were new, and let it answer by its least share."""
        self.carry[0][index] = SHARE / len(self.carry[0])
        self.carry[1][index] = 0.0
        self.carry[4][index] = self.carry[4][-1]


class NumberMixer:
    """Mixes numbers, in units of the running deviation of the target, and follows the errors.

    Two simple members are added here: the mean, and the last value.

    Args:
        members: How many networks there are.
    """

    simple = ("mean", "last value")

    def __init__(self, members: int) -> None:
        count = members + 2
        self.members = members
        self.carry = [
            torch.full((count,), 1 / count),  # weights of the members
            torch.ones(1),  # what the best member's squared error usually is
            torch.zeros(count),  # squared error of each member, slowly forgotten
            RIDGE * torch.eye(count),  # covariance of recursive least squares
            torch.full((count,), 1 / count),  # its weights
            torch.full((2,), 0.5),  # weights of the two mixtures
            torch.tensor([*(1.0 for _ in LEVELS), 1.0]),  # half widths in units of the usual error, and that
        ]

    def answer(
        self, carry: Tensors, outputs: Tensor, last: Tensor, reach: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Answers of all members, of the two mixtures, and of the whole, within `reach`."""
        weights, _, _, _, stacked, halves, _ = carry
        experts = torch.cat([outputs, torch.zeros_like(last), last])
        experts = torch.where(experts.abs() < 1e6, experts, torch.zeros_like(experts))
        experts = torch.minimum(torch.maximum(experts, reach[0]), reach[1])
        both = torch.stack(
            [weights @ experts, torch.minimum(torch.maximum(stacked @ experts, reach[0]), reach[1])]
        )
        return experts, both, halves @ both

    def step(
        self,
        carry: Tensors,
        outputs: Tensor,
        last: Tensor,
        reach: Tensor,
        target: Tensor,
        pace: Tensor | float = 1.0,
    ) -> tuple[Tensors, Tensor]:
        """The carry after the target is known; and the answer from before, with its half widths."""
        weights, usual, errors, covariance, stacked, halves, widths = carry
        experts, both, answer = self.answer(carry, outputs, last, reach)
        squares = (experts - target).square().clamp(max=100.0)
        new_usual = _SLOW * usual + (1 - _SLOW) * squares.min().clamp(max=10.0)
        new_weights = shared(
            weights * torch.exp(-RATE * pace * (squares / new_usual).clamp(max=20.0)) + 1e-12, pace
        )
        # Recursive least squares with slow forgetting, from the same weights for all.
        gain = covariance @ experts
        gain = gain / (FORGET / pace + experts @ gain)
        new_stacked = stacked + gain * (target - stacked @ experts).clamp(-3.0, 3.0)
        new_covariance = (covariance - torch.outer(gain, covariance @ experts)) / FORGET
        off = (both - target).square()
        new_halves = shared(halves * torch.exp(-RATE * pace * (off / new_usual).clamp(max=20.0)) + 1e-12, pace)
        new = [
            new_weights,
            new_usual,
            _SLOW * errors + (1 - _SLOW) * squares,
            new_covariance,
            new_stacked,
            new_halves,
        ]
        error = (answer - target).abs()
        return [*new, follow(widths, error, error > widths[:-1] * widths[-1], pace)], answer

    def shares(self) -> Tensor:
        """The share of each member in the answer."""
        weights, stacked, halves = self.carry[0], self.carry[4].abs(), self.carry[5]
        return halves[0] * weights + halves[1] * stacked / stacked.sum().clamp(min=_LEAST)

    def lost(self, index: int) -> bool:
        """Whether a member is far behind the mean: it has diverged."""
        errors = self.carry[2]
        return not float(errors[index]) < 4 * float(errors[-2]) + 1

    def best_first(self) -> list[int]:
        """The networks, by their latest errors."""
        return self.carry[2][: self.members].argsort().tolist()

    def forget(self, index: int) -> None:
        """Judge a member as if it were new, and let it answer by its least share."""
        weights, _, errors, covariance, stacked = self.carry[:5]
        weights[index] = SHARE / len(weights)
        errors[index] = errors[-2]
        stacked[index] = 0.0
        covariance[index] = 0.0
        covariance[:, index] = 0.0
        covariance[index, index] = RIDGE


def level_of(coverage: float) -> int:
    """The place of a coverage among `LEVELS`.

    Raises:
        ConfigError: If it is none of them.
    """
    if coverage not in LEVELS:
        raise ConfigError(f"coverage={coverage!r} is not followed: give one of {', '.join(map(str, LEVELS))}")
    return LEVELS.index(coverage)


def follow(widths: Tensor, error: Tensor, missed: Tensor, pace: Tensor | float = 1.0) -> Tensor:
    """The half widths of the intervals after one more error: those that it missed grow, the others shrink.

    Over many rows each level is missed as often as it says, whatever the errors do, as long as `missed` is about
    the intervals that were given (adaptive conformal inference).
    """
    new_scale = 0.98 * widths[-1:] + 0.02 * error.clamp(max=100.0)
    step = 0.05 * pace**0.5 * (missed.to(widths.dtype) - (1 - torch.tensor(LEVELS)))
    new = widths[:-1] + step * widths[:-1].clamp(min=0.1)
    return torch.cat([new.clamp(min=1e-3), new_scale.clamp(min=1e-6)])
