"""What is to be known about an operation before it is recorded."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from hamlearn._base.torch_private import is_composite, schema

aten = torch.ops.aten
_BY_VALUE = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
_MEMORY = (aten.set_, aten.resize_, aten.resize_as_)
_VIEWS = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}


@dataclass(frozen=True)
class Kind:
    """What is to be known about an operation before it is called.

    Attributes:
        composite: Others are called in its place.
        beyond: It depends on values, or gives a tensor other memory.
        placed: It makes a tensor of nothing, on a device that it is told.
        writes: It changes one of the tensors that it is given.
        view: The view that it turns a tensor into, where it does that in place.
    """

    composite: bool
    beyond: bool
    placed: bool
    writes: bool
    view: Any


@functools.cache
def kind_of(func: Any) -> Kind:
    """What is to be known about an operation."""
    told = schema(func)
    if told is None:
        return Kind(composite=False, beyond=True, placed=False, writes=False, view=None)
    packet, tags, arguments = func.overloadpacket, set(func.tags), told.arguments
    view = _VIEWS.get(func)
    beyond = bool(_BY_VALUE & tags) and func is not aten.index.Tensor
    beyond = beyond or (torch.Tag.inplace_view in tags and view is None)
    beyond = beyond or packet in _MEMORY or any(each.is_out for each in arguments)
    made = not any("Tensor" in str(each.type) for each in arguments)
    return Kind(
        composite=is_composite(func),
        beyond=beyond,
        placed=made and "device" in [each.name for each in arguments],
        writes=told.is_mutable,
        view=view,
    )
