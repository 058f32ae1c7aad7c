"""One operation of a graph, with its arguments by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hamlearn._base.torch_private import schema
from hamlearn.loops.values import C_TYPES, UnsupportedError


@dataclass(frozen=True)
class Call:
    """An operation, its arguments and what it gives.

    Attributes:
        op: The operation, whatever the overload.
        given: Every argument of the operation by name, with values in place of tensors.
        shape: Sizes of the result; of the first one if there are several.
        dtype: Its type.
        shapes: Sizes of all results.
        plain: Whether PyTorch keeps the first argument in row-major order, without gaps.
    """

    op: Any
    given: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]
    plain: bool

    @classmethod
    def of(cls, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Call:
        """What a node of the graph calls, given the values of its arguments."""
        op, described = getattr(node.target, "overloadpacket", None), schema(node.target)
        if op is None or described is None:
            raise UnsupportedError(f"{node.target} has no loops")
        names = described.arguments
        given = {name.name: name.default_value for name in names}
        given |= dict(zip((name.name for name in names), args, strict=False)) | kwargs
        results = node.meta["val"]
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        results = [result for result in results if result is not None]
        if not results or not all(isinstance(result, torch.Tensor) for result in results):
            raise UnsupportedError(f"{node.target} does not return tensors")
        for result in results:
            if result.dtype not in C_TYPES:
                raise UnsupportedError(f"{node.target} gives {result.dtype}")
        shapes = [tuple(result.shape) for result in results]
        first = node.args[0].meta["val"] if node.args and isinstance(node.args[0], fx.Node) else None
        plain = isinstance(first, torch.Tensor) and first.is_contiguous() and not first.storage_offset()
        return cls(op, given, shapes[0], results[0].dtype, shapes, plain)

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def operands(self, two: bool) -> list[Any]:
        """The one or two things that an elementwise operation works on; nothing else may have been asked for."""
        first, *rest = self.given.items()
        taken = [first[1], *([rest.pop(0)[1]] if two else [])]
        if any(value for _, value in rest):
            raise UnsupportedError(f"{self.op} with {dict(rest)} has no loops")
        return taken

    def axis(self, name: str = "dim", of: str = "self") -> int:
        """An axis of the argument `of`, counted from the front."""
        return int(self[name]) % max(len(self[of].shape), 1)

    def axes(self) -> list[int]:
        """The axes to fold over, all of them where none is named."""
        rank = len(self["self"].shape)
        dim = self.given.get("dim")
        dim = [dim] if isinstance(dim, int) else list(dim or [])
        return sorted({axis % rank for axis in dim if rank}) or list(range(rank))


def require(holds: bool, what: str) -> None:
    """Require that an operation has loops.

    Raises:
        UnsupportedError: If it has none.
    """
    if not holds:
        raise UnsupportedError(f"{what} has no loops")
