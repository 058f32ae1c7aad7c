"""Every operation that has loops, in C and in CUDA, with the types that it takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hamlearn.loops.convolutions import CONVOLUTIONS
from hamlearn.loops.gather_scatter import GATHER_SCATTER
from hamlearn.loops.pointwise import BITS, POINTWISE
from hamlearn.loops.reductions import REDUCTIONS
from hamlearn.loops.shapes import SHAPES
from hamlearn.loops.values import C_TYPES

aten = torch.ops.aten
GROUPS = {
    "elementwise": POINTWISE,
    "shapes and constants": SHAPES,
    "sums, extremes, products of matrices": REDUCTIONS,
    "by index": GATHER_SCATTER,
    "convolutions": CONVOLUTIONS,
}
_WHOLE = (torch.int64, torch.int32)
_REAL = (torch.float32, torch.float64)
_ALL = tuple(C_TYPES)


class Row(NamedTuple):
    """One operation.

    Attributes:
        group: What kind of operation it is.
        name: Its name in PyTorch, whatever the overload.
        dtypes: Types that it takes.
        op: The operation itself.
    """

    group: str
    name: str
    dtypes: tuple[torch.dtype, ...]
    op: Any


def coverage() -> list[Row]:
    """Every operation that has loops.

    An operation that is not among them may still be taken: PyTorch takes most of them apart into these.

    Example:
        >>> rows = {row.name: row for row in coverage()}
        >>> rows["mean"].dtypes
        (torch.float32, torch.float64)
    """
    return [
        Row(group, str(op).removeprefix("aten."), _TYPES.get(op, _ALL), op)
        for group, table in GROUPS.items()
        for op in table
    ]


def markdown() -> str:
    """The same as a table for people: operations of one group and the same types in one row."""
    found: dict[tuple[str, tuple[torch.dtype, ...]], list[str]] = {}
    for row in coverage():
        found.setdefault((row.group, row.dtypes), []).append(f"`{row.name}`")
    lines = ["| kind | operations | types |", "| --- | --- | --- |"]
    for (group, dtypes), names in found.items():
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        lines.append(f"| {group} | {', '.join(names)} | {kinds} |")
    return "\n".join(lines)


_TYPES: dict[Any, tuple[torch.dtype, ...]] = {
    **dict.fromkeys((aten.floor, aten.ceil, aten.trunc, aten.round), _REAL),
    **dict.fromkeys((aten.mean, aten.var, aten.var_mean, *CONVOLUTIONS), _REAL),
    **dict.fromkeys((aten.neg, aten.relu, aten.sub, aten.abs, aten.arange), (*_REAL, *_WHOLE)),
    **dict.fromkeys((aten.argmax, aten.argmin), (*_REAL, *_WHOLE)),
    **dict.fromkeys((aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.addmv), (*_REAL, *_WHOLE)),
    **dict.fromkeys((aten.mv, aten.dot, aten.vdot), (*_REAL, *_WHOLE)),
    **dict.fromkeys((*BITS, aten.bitwise_not), (*_WHOLE, torch.bool)),
}
"""Those that do not take all types; where PyTorch computes whole numbers as floating-point ones, so do loops."""
