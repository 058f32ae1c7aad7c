"""A call of every operation that has loops."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import aten as private_aten
from hamlearn.loops.pointwise import ARITHMETIC, BITS, COMPARISONS, FLOATS, LOGIC

aten = torch.ops.aten
Example = Callable[[Tensor, Tensor, Tensor], Any]
"""An operation of two 4×4 tensors, and of four indices from 0 to 3."""


def example(op: Any) -> Example:
    """A call of the operation."""
    given = EXAMPLES.get(op)
    if given is not None:
        return given
    text = {**ARITHMETIC, **FLOATS, **{k: (v, 1) for k, v in {**BITS, **LOGIC}.items()}}.get(op, ("", 0))[0]
    if "{1}" in text or op in COMPARISONS or op in _OF_TWO:
        return lambda x, y, i: op(x, y)
    return lambda x, y, i: op(x)


_OF_TWO = {aten.copy, aten.add, aten.sub, aten.remainder, aten.mm}
_FILTER = (None, [1], [0], [1], False, [0], 1)
EXAMPLES: dict[Any, Example] = {
    aten.pow: lambda x, y, i: aten.pow(x, 2),
    aten.clamp: lambda x, y, i: aten.clamp(x, 0, 1),
    aten.div: lambda x, y, i: aten.div(x, y) if x.is_floating_point() else aten.div(x, 3, rounding_mode="floor"),
    aten.where: lambda x, y, i: aten.where(x > y, x, y),
    aten.fmod: lambda x, y, i: aten.fmod(x, 2.5),
    aten.remainder: lambda x, y, i: aten.remainder(x, 3),
    private_aten("_to_copy"): lambda x, y, i: private_aten("_to_copy")(x, dtype=torch.float64),
    aten.view: lambda x, y, i: aten.view(x, [2, 8]),
    private_aten("_unsafe_view"): lambda x, y, i: private_aten("_unsafe_view")(x, [2, 8]),
    aten.reshape: lambda x, y, i: aten.reshape(x, [16]),
    aten.unsqueeze: lambda x, y, i: aten.unsqueeze(x, 1),
    aten.squeeze: lambda x, y, i: aten.squeeze(x[:, :1], 1),
    aten.as_strided: lambda x, y, i: aten.as_strided(x, [2, 3], [4, 1], 1),
    aten.permute: lambda x, y, i: aten.permute(x, [1, 0]),
    aten.transpose: lambda x, y, i: aten.transpose(x, 0, 1),
    aten.expand: lambda x, y, i: aten.expand(x, [2, 4, 4]),
    aten.flip: lambda x, y, i: aten.flip(x, [0]),
    aten.roll: lambda x, y, i: aten.roll(x, [1], [0]),
    aten.slice: lambda x, y, i: aten.slice(x, 0, 1, 3),
    aten.select: lambda x, y, i: aten.select(x, 1, 2),
    aten.split: lambda x, y, i: aten.split(x, 3, 1),
    aten.unsafe_split: lambda x, y, i: aten.unsafe_split(x, 3, 1),
    aten.split_with_sizes: lambda x, y, i: aten.split_with_sizes(x, [1, 3], 0),
    aten.unbind: lambda x, y, i: aten.unbind(x, 0),
    aten.cat: lambda x, y, i: aten.cat([x, y], 1),
    aten.slice_scatter: lambda x, y, i: aten.slice_scatter(x, y[:2], 0, 1, 3),
    aten.select_scatter: lambda x, y, i: aten.select_scatter(x, y[0], 0, 2),
    aten.constant_pad_nd: lambda x, y, i: aten.constant_pad_nd(x, [1, 2], 0),
    aten.full: lambda x, y, i: aten.full([2, 3], 1, dtype=x.dtype) + x[:2, :3],
    aten.full_like: lambda x, y, i: aten.full_like(x, 1),
    aten.new_full: lambda x, y, i: aten.new_full(x, [2, 3], 1),
    aten.scalar_tensor: lambda x, y, i: aten.scalar_tensor(1, dtype=x.dtype) + x,
    aten.zeros: lambda x, y, i: aten.zeros([2, 3], dtype=x.dtype) + x[:2, :3],
    aten.new_zeros: lambda x, y, i: aten.new_zeros(x, [2, 3]),
    aten.empty: lambda x, y, i: aten.copy(aten.empty([4, 4], dtype=x.dtype), x),
    aten.empty_like: lambda x, y, i: aten.copy(aten.empty_like(x), y),
    aten.new_empty: lambda x, y, i: aten.copy(aten.new_empty(x, [4, 4]), y),
    aten.empty_strided: lambda x, y, i: aten.copy(aten.empty_strided([4, 4], [4, 1], dtype=x.dtype), y),
    aten.empty_permuted: lambda x, y, i: aten.copy(aten.empty_permuted([4, 4], [0, 1], dtype=x.dtype), y),
    aten.ones: lambda x, y, i: aten.ones([2, 3], dtype=x.dtype) + x[:2, :3],
    aten.new_ones: lambda x, y, i: aten.new_ones(x, [2, 3]),
    aten.eye: lambda x, y, i: aten.eye(4, dtype=x.dtype) + x,
    aten.arange: lambda x, y, i: aten.arange(4, dtype=x.dtype) + x,
    aten.sum: lambda x, y, i: aten.sum(x, [1]),
    aten.prod: lambda x, y, i: aten.prod(x, 1),
    aten.amax: lambda x, y, i: aten.amax(x, [1]),
    aten.amin: lambda x, y, i: aten.amin(x, [0]),
    aten.max: lambda x, y, i: aten.max(x, 1),
    aten.min: lambda x, y, i: aten.min(x, 0),
    aten.argmax: lambda x, y, i: aten.argmax(x, 1),
    aten.argmin: lambda x, y, i: aten.argmin(x, 0),
    aten.mean: lambda x, y, i: aten.mean(x, [1]),
    aten.var: lambda x, y, i: aten.var(x, [1], correction=1),
    aten.var_mean: lambda x, y, i: aten.var_mean(x, [1], correction=0),
    aten.cumsum: lambda x, y, i: aten.cumsum(x, 1),
    aten.bmm: lambda x, y, i: aten.bmm(x[None], y[None]),
    aten.addmm: lambda x, y, i: aten.addmm(x[0], x, y),
    aten.baddbmm: lambda x, y, i: aten.baddbmm(x[None], x[None], y[None]),
    aten.addmv: lambda x, y, i: aten.addmv(x[0], x, y[0]),
    aten.mv: lambda x, y, i: aten.mv(x, y[0]),
    aten.dot: lambda x, y, i: aten.dot(x[0], y[0]),
    aten.vdot: lambda x, y, i: aten.vdot(x[0], y[0]),
    aten.gather: lambda x, y, i: aten.gather(x, 1, i[:, None]),
    aten.index_select: lambda x, y, i: aten.index_select(x, 0, i),
    aten.index_add: lambda x, y, i: aten.index_add(x, 0, i, y),
    aten.scatter: lambda x, y, i: aten.scatter(x, 1, i[:, None], y),
    aten.scatter_add: lambda x, y, i: aten.scatter_add(x, 1, i[:, None], y),
    aten.embedding: lambda x, y, i: aten.embedding(x, i),
    aten.embedding_dense_backward: lambda x, y, i: aten.embedding_dense_backward(x, i, 4, -1, False),
    aten.index: lambda x, y, i: aten.index(x, [i]),
    aten.index_put: lambda x, y, i: aten.index_put(x, [i], y, True),
    aten.convolution: lambda x, y, i: aten.convolution(x[None], y[:, :, None], *_FILTER),
    aten.convolution_backward: lambda x, y, i: aten.convolution_backward(
        x[None], x[None], y[:, :, None], None, [1], [0], [1], False, [0], 1, [True, True, False]
    )[:2],
    aten.avg_pool2d: lambda x, y, i: aten.avg_pool2d(x[None, None], [2, 2]),
    aten.avg_pool2d_backward: lambda x, y, i: aten.avg_pool2d_backward(
        x[None, None, :2, :2], x[None, None], [2, 2], [2, 2], [0, 0], False, True, None
    ),
}
