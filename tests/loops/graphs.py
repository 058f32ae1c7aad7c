"""Random steps in exact arithmetic: small whole numbers, so that loops in any order give the very same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

STEPS = 4
SIDES = [(2, 3), (3, 5), (1, 4), (4, 1), (3, 3), (1, 1), (7, 2), (7, 7)]
LARGEST = 300


@dataclass
class Problem:
    """A step, and tensors to run it on.

    Attributes:
        step: Takes carry, sample and constants; returns the new carry and the results.
        carry: First carry.
        samples: One row per step.
        constants: What never changes.
    """

    step: Callable[..., list[Tensor]]
    carry: list[Tensor]
    samples: list[Tensor]
    constants: list[Tensor]


def random_problem(seed: int, member: int = 0) -> Problem:
    """A step of ten to thirty operations; `member` changes the numbers, but not the step."""
    rng, draw = random.Random(seed), torch.Generator().manual_seed(1000 * seed + member)
    a, b = rng.choice(SIDES)
    shapes = [(), (a,), (b,), (a, b), (b, a), (a, b), (1, b), (a, 1), (2, a, b), (b, b)]

    def tensor(shape: tuple[int, ...]) -> Tensor:
        return torch.randint(-3, 4, shape, generator=draw).double()

    carry = [tensor(rng.choice(shapes)) for _ in range(rng.randint(1, 5))]
    carry += [tensor((a,)).long()] if rng.random() < 0.3 else []
    samples = [tensor((STEPS, *rng.choice(shapes))) for _ in range(rng.randint(1, 2))]
    constants = [tensor(rng.choice(shapes)) for _ in range(rng.randint(0, 2))]
    plan = rng.random()

    def step(*given: Tensor) -> list[Tensor]:
        return _Step(random.Random(plan), list(given)).outputs(len(carry))

    return Problem(step, carry, samples, constants)


class _Step:
    def __init__(self, rng: random.Random, given: list[Tensor]) -> None:
        self.rng, self.given, self.pool = rng, given, list(given)
        for _ in range(rng.randint(3, 14)):
            operation = rng.choice(OPERATIONS)
            # Late values are taken more often, so that chains grow.
            operand = self.pick() if rng.random() < 0.4 else self.pool[-rng.randint(1, min(3, len(self.pool)))]
            self.pool.append(operation(self, operand))

    def pick(self, shape: torch.Size | None = None) -> Tensor:
        fitting = [x for x in self.pool if shape is None or x.shape == shape]
        return self.rng.choice(fitting)

    def partner(self, x: Tensor) -> Tensor:
        """A tensor that can be combined with `x`, and does not make it much larger."""
        fitting = []
        for y in self.pool:
            try:
                size = torch.broadcast_shapes(x.shape, y.shape).numel()
            except RuntimeError:
                continue
            if size <= LARGEST:
                fitting.append(y)
        return self.rng.choice(fitting)

    def outputs(self, count: int) -> list[Tensor]:
        rng = self.rng
        carried = []
        for own in self.given[:count]:
            fitting = [x for x in self.pool if x.shape == own.shape and x.dtype == own.dtype]
            given = [x for x in self.given if x.shape == own.shape and x.dtype == own.dtype]
            made = fitting[len(given) :] or given
            chosen = rng.choice(given) if rng.random() < 0.3 else rng.choice(made)
            if rng.random() < 0.4:
                chosen = own - self.shown(chosen, own) if rng.random() < 0.7 else self.shown(chosen, own)
            if own.dim() and rng.random() < 0.15:
                chosen = chosen.flip(0) + own
            carried.append(_small(chosen.to(own.dtype)) if rng.random() < 0.5 else chosen)
        results = [self.pick() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            results.append(rng.choice(carried))
        return [*carried, *results]

    def shown(self, x: Tensor, own: Tensor) -> Tensor:
        """Something of the shape of `own` that depends on `x` and another value."""
        other = self.pick()
        return x + other.sum().to(own.dtype).clamp(-5, 5)


def _small(x: Tensor) -> Tensor:
    return x.clamp(-9, 9)


def _add(s: _Step, x: Tensor) -> Tensor:
    return x + s.partner(x)


def _subtract(s: _Step, x: Tensor) -> Tensor:
    return torch.sub(s.partner(x), x, alpha=s.rng.choice([1, 2]))


def _multiply(s: _Step, x: Tensor) -> Tensor:
    return _small(x * s.partner(x))


def _square(s: _Step, x: Tensor) -> Tensor:
    return _small(x * x)


def _larger(s: _Step, x: Tensor) -> Tensor:
    return torch.maximum(x, s.partner(x).to(x.dtype)).relu()


def _where(s: _Step, x: Tensor) -> Tensor:
    y = s.partner(x)
    return torch.where(x > y, x, y + 1)


def _either(s: _Step, x: Tensor) -> Tensor:
    return torch.where(s.partner(x) > 0, x, s.pick(x.shape) - 1)


def _compare(s: _Step, x: Tensor) -> Tensor:
    return (x <= s.partner(x)).to(s.rng.choice([torch.float64, torch.int64]))


def _transpose(s: _Step, x: Tensor) -> Tensor:
    axes = list(range(x.dim()))
    s.rng.shuffle(axes)
    return x.permute(axes)


def _reshape(s: _Step, x: Tensor) -> Tensor:
    shapes = [y.shape for y in s.pool if y.numel() == x.numel()]
    return x.reshape(s.rng.choice([(-1,), *shapes]))


def _slice(s: _Step, x: Tensor) -> Tensor:
    if not x.dim():
        return x + 1
    axis = s.rng.randrange(x.dim())
    start = s.rng.randrange(x.shape[axis])
    return (
        x.narrow(axis, start, x.shape[axis] - start).transpose(0, axis)[:: s.rng.choice([1, 2])].transpose(0, axis)
    )


def _flip(s: _Step, x: Tensor) -> Tensor:
    if not x.dim():
        return -x
    axis = s.rng.randrange(x.dim())
    return x.flip(axis) if s.rng.random() < 0.5 else x.roll(s.rng.randint(-2, 2), axis)


def _cat(s: _Step, x: Tensor) -> Tensor:
    if not x.dim() or x.numel() > 60:
        return x * 2
    return torch.cat([x, s.pick(x.shape).to(x.dtype)], s.rng.randrange(x.dim()))


def _split(s: _Step, x: Tensor) -> Tensor:
    if not x.dim():
        return x
    axis = s.rng.randrange(x.dim())
    parts = x.split(s.rng.randint(1, 2), axis) if s.rng.random() < 0.5 else x.unbind(axis)
    for part in parts[1:]:
        s.pool.append(part)
    return parts[0]


def _expand(s: _Step, x: Tensor) -> Tensor:
    return x.expand(2, *x.shape) if x.dim() < 3 and x.numel() < 30 else x.unsqueeze(s.rng.randint(0, x.dim()))


def _fold(s: _Step, x: Tensor) -> Tensor:
    axes = [axis for axis in range(x.dim()) if s.rng.random() < 0.5]
    if not x.numel():
        return x
    keep = s.rng.random() < 0.5
    if s.rng.random() < 0.3 or not x.dim():
        return x.amax(axes, keepdim=keep)
    return _small(x.sum(axes, keepdim=keep))


def _product(s: _Step, x: Tensor) -> Tensor:
    if x.dim() != 2:
        x = x.reshape(-1, 1)
    x = x.double()
    fitting = [y for y in s.pool if y.dim() == 2 and y.shape[0] == x.shape[1]]
    y = s.rng.choice(fitting).double() if fitting else x.t()
    return _small(x @ y) if y.shape[1] * x.shape[0] < LARGEST else x


def _pick_by_value(s: _Step, x: Tensor) -> Tensor:
    if not x.numel() or not x.dim():
        return x
    axis = s.rng.randrange(x.dim())
    where = s.pick(x.shape).abs().long().clamp(0, x.shape[axis] - 1)
    kind = s.rng.randrange(4)
    if kind == 0:
        return x.gather(axis, where)
    if kind == 1:
        return x.scatter_add(axis, where, x * 2)
    if kind == 2:
        return x.scatter(axis, where.narrow(axis, 0, 1), s.rng.randint(-3, 3))
    return x.index_select(axis, where.reshape(-1)[:2])


def _assign(s: _Step, x: Tensor) -> Tensor:
    if not x.dim() or not x.numel():
        return x
    y = x.clone()
    axis = s.rng.randrange(x.dim())
    start = s.rng.randrange(x.shape[axis])
    part = y.narrow(axis, start, s.rng.randint(1, x.shape[axis] - start))
    part.copy_(part * 2 - 1) if s.rng.random() < 0.5 else part.add_(s.pick().sum().to(x.dtype).clamp(-9, 9))
    return y


def _running(s: _Step, x: Tensor) -> Tensor:
    return _small(x.cumsum(s.rng.randrange(x.dim()))) if x.dim() else x


OPERATIONS: list[Callable[[_Step, Tensor], Tensor]] = [
    *(
        _add,
        _subtract,
        _multiply,
        _square,
        _larger,
        _where,
        _either,
        _compare,
        _transpose,
        _reshape,
        _slice,
        _flip,
        _cat,
    ),
    *(_split, _expand, _fold, _product, _pick_by_value, _assign, _running, _add, _subtract, _fold, _product),
]
