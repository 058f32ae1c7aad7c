"""Random numbers of a compiled step: drawn for a whole block beforehand, and given to the loop as inputs.

All random operations are made of uniform numbers in [0, 1). A recording has one input for each of these, in the
place of `aten.rand`. The numbers of step n of a learner depend on its seed and on n alone, so steps that are taken
once more have the same ones, whatever the size of the block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from hamlearn._base import replay
from hamlearn._base.torch_private import DispatchMode
from hamlearn._base.torch_private import aten as private_aten
from hamlearn.loops.values import UnsupportedError

aten = torch.ops.aten
_BLOCK = 32
"""Bytes of random numbers that one value of the generator's counter stands for."""


class Draws:
    """The uniform numbers that one step draws, in order.

    Attributes:
        like: Tensors of their shapes and types.

    Example:
        >>> draws = Draws()
        >>> draws.like.append(torch.zeros(2, 3))
        >>> block, (rest,) = draws.rows(7, 0, 10), draws.rows(7, 4 * draws.width, 6)
        >>> block[0].shape, torch.equal(block[0][4:], rest)
        (torch.Size([10, 2, 3]), True)
    """

    def __init__(self) -> None:
        self.like: list[Tensor] = []

    @property
    def width(self) -> int:
        """How far a step moves the counter."""
        return math.ceil(self._count() * self._type().itemsize / _BLOCK)

    def rows(self, seed: int, position: int, steps: int) -> list[Tensor]:
        """The numbers of some steps, one row each, if the counter is at `position` before the first one."""
        if not self.like:
            return []
        # A row begins at a value of the counter, so that rows can be made one by one or all at once.
        numbers, dtype = self.width * _BLOCK // self._type().itemsize, self._type()
        random = np.random.Generator(np.random.Philox(key=seed, counter=position))
        table = torch.from_numpy(random.random((steps, numbers), dtype=dtype.type))
        found, start = [], 0
        for like in self.like:
            part = table[:, start : start + like.numel()].reshape(steps, *like.shape)
            found.append(part.to(like.dtype).contiguous())
            start += like.numel()
        return found

    def become_inputs(self, graph: fx.Graph) -> None:
        """Put inputs, behind those that there are, in the place of the uniform numbers of a graph."""
        *_, last = (node for node in graph.nodes if node.op == "placeholder")
        for node in [node for node in graph.nodes if node.target is aten.rand.default]:
            with graph.inserting_after(last):
                last = graph.placeholder(f"random_{len(self.like)}")
            last.meta = dict(node.meta)
            node.replace_all_uses_with(last)
            graph.erase_node(node)
            shown = node.meta["val"]
            self.like.append(torch.zeros(shown.shape, dtype=shown.dtype))

    def _count(self) -> int:
        return sum(like.numel() for like in self.like)

    def _type(self) -> np.dtype[Any]:
        wide = any(like.dtype == torch.float64 for like in self.like)
        return np.dtype(np.float64 if wide else np.float32)


class GivenDraws(DispatchMode):
    """Within, PyTorch's random operations take these uniform numbers, one tensor after the other.

    Raises:
        UnsupportedError: If they ask for others than these.

    Example:
        >>> with GivenDraws([torch.tensor([0.2, 0.7])]):
        ...     torch.bernoulli(torch.tensor([0.5, 0.5]))
        tensor([1., 0.])
    """

    def __init__(self, rows: Sequence[Tensor]) -> None:
        super().__init__()
        self._left = list(rows)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.rand.default:
            return self._next(torch.Size(args[0]), kwargs.get("device"))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        in_place = func.overloadpacket in _FILLED_BY
        made = _FILLED_BY[func.overloadpacket] if in_place else _MADE_OF.get(func.overloadpacket)
        if made is None:
            raise UnsupportedError(f"it draws random numbers ({func})")
        with self:
            found = made(*args, **kwargs)
        return args[0].copy_(found) if in_place else found

    def _next(self, shape: torch.Size, device: Any) -> Tensor:
        if not self._left or self._left[0].shape != shape:
            raise UnsupportedError("it draws random numbers in another order than when it was recorded")
        return self._left.pop(0).to(device)


def present_seed() -> int:
    """A seed that follows from the state of PyTorch's generator, from which nothing is drawn."""
    state = torch.default_generator.get_state().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(state, digest_size=7).digest(), "big")


def uniform_parts() -> dict[Any, Callable[..., Any]]:
    """How random operations are made of uniform numbers, as decompositions of their overloads."""
    table = {}
    for packet, made in _MADE_OF.items():
        for name in packet.overloads():
            overload = getattr(packet, name)
            if "out" not in name and overload is not aten.rand.default:
                table[overload] = made
    return table


def _uniform(like: Tensor, *, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    if replay.repeating():
        raise UnsupportedError("it draws random numbers in a step that evaluates its network several times")
    dtype = dtype or (like.dtype if like.is_floating_point() else torch.get_default_dtype())
    return aten.rand.default(like.shape if shape is None else shape, dtype=dtype, device=like.device)


def _of_shape(shape: Sequence[int], dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor that stands for the arguments of a factory function."""
    return torch.empty(list(shape), dtype=dtype or torch.get_default_dtype(), device=device)


def _require_no_generator(generator: Any) -> None:
    if generator is not None:
        raise UnsupportedError("it draws random numbers from a generator of its own")


def _rand(size: Any, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    _require_no_generator(generator)
    return _uniform(_of_shape(size, dtype, device))


def _rand_like(like: Tensor, *, generator: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    _require_no_generator(generator)
    return _uniform(like, dtype=dtype)


def _normal_like(like: Tensor, *, generator: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Standard normal numbers, by the transform of Box and Muller."""
    _require_no_generator(generator)
    one, other = _uniform(like, dtype=dtype), _uniform(like, dtype=dtype)
    # 1 - u is never 0.
    return (-2.0 * torch.log(1.0 - one)).sqrt() * torch.cos(2.0 * math.pi * other)


def _randn(size: Any, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _normal_like(_of_shape(size, dtype, device), generator=generator)


def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Tensor:
    if size is not None:
        return mean + std * _randn(size, generator=generator, **options)
    like = mean if isinstance(mean, Tensor) else std
    if isinstance(mean, Tensor) and isinstance(std, Tensor):
        like = mean + std
    return mean + std * _normal_like(like, generator=generator)


def _normal_of(like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return mean + std * _normal_like(like, generator=generator)


def _between(like: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    _require_no_generator(generator)
    return low + (high - low) * _uniform(like)


def _whole(like: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    # 24 bits reach all numbers of a short range about equally often, and no others.
    wide = torch.float32 if high - low <= 1 << 12 else torch.float64
    drawn = torch.floor(_uniform(like, dtype=wide) * float(high - low)).clamp(max=float(high - low - 1))
    return (drawn + float(low)).to(dtype)


def _randint(*given: Any, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    _require_no_generator(generator)
    *low, high, size = given
    return _whole(_of_shape(size, torch.float32, device), low[0] if low else 0, high, dtype or torch.int64)


def _randint_like(like: Tensor, *bounds: Any, dtype: Any = None, **_: Any) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise UnsupportedError("it draws whole numbers up to one that is a tensor")
    return _whole(like, low, high, dtype or like.dtype)


def _bernoulli(like: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    _require_no_generator(generator)
    return (_uniform(like) < (like if p is None else p)).to(like.dtype)


def _coins(like: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return _bernoulli(like, p, generator=generator)


def _dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = _uniform(x) < 1.0 - p
    return mask * x * (0.0 if p == 1 else 1.0 / (1.0 - p)), mask


def _exponential(like: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    _require_no_generator(generator)
    return -torch.log1p(-_uniform(like)) / rate


def _multinomial(p: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Draws by the smallest of exponential numbers, each divided by its weight."""
    if count != 1 and not replacement:
        raise UnsupportedError("it draws several numbers without replacement")
    rows = p.unsqueeze(-2).expand(*p.shape[:-1], count, p.shape[-1])
    waits = _exponential(rows, generator=generator).clamp(min=torch.finfo(p.dtype).tiny)
    return (rows / waits).argmax(-1)


_MADE_OF: dict[Any, Callable[..., Any]] = {
    aten.rand: _rand,
    aten.rand_like: _rand_like,
    aten.randn: _randn,
    aten.randn_like: _normal_like,
    aten.normal: _normal,
    private_aten("normal_functional"): _normal_of,
    aten.uniform: _between,
    aten.randint: _randint,
    aten.randint_like: _randint_like,
    aten.bernoulli: _bernoulli,
    aten.native_dropout: _dropout,
    aten.exponential: _exponential,
    aten.multinomial: _multinomial,
}
"""Random operations as functions of uniform numbers."""

_FILLED_BY: dict[Any, Callable[..., Any]] = {
    aten.normal_: _normal_of,
    aten.uniform_: _between,
    aten.bernoulli_: _coins,
    aten.exponential_: _exponential,
}
"""The same for operations that fill a tensor; a recording has others in their place."""
