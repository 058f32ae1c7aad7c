"""From a graph's operations to values: the table of all that have loops."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

from torch import fx

from hamlearn.loops.call import Call
from hamlearn.loops.convolutions import CONVOLUTIONS
from hamlearn.loops.gather_scatter import GATHER_SCATTER
from hamlearn.loops.pointwise import POINTWISE
from hamlearn.loops.reductions import REDUCTIONS
from hamlearn.loops.shapes import SHAPES
from hamlearn.loops.values import UnsupportedError
from hamlearn.loops.writer import Writer

OPERATIONS = ChainMap[Any, Any](POINTWISE, SHAPES, REDUCTIONS, GATHER_SCATTER, CONVOLUTIONS)
"""An entry that is added to one of the tables is known from then on."""


def apply(writer: Writer, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value of one node, or a list of values, from the values of its arguments.

    Raises:
        UnsupportedError: If the operation has no loops.
    """
    method = OPERATIONS.get(getattr(node.target, "overloadpacket", None))
    if method is None:
        raise UnsupportedError(f"{node.target} has no loops")
    return method(writer, Call.of(node, args, kwargs))


def known() -> set[Any]:
    """The operations that have loops."""
    return set(OPERATIONS)
