"""How the kernel of a convolution moves over its input, and large convolutions as products of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hamlearn.loops import blas
from hamlearn.loops.call import Call
from hamlearn.loops.indices import Affine, Index
from hamlearn.loops.reductions import product
from hamlearn.loops.shapes import view
from hamlearn.loops.values import Value, constant
from hamlearn.loops.writer import Writer


@dataclass(frozen=True)
class Window:
    """How a kernel moves over its input: one entry of each per spatial axis.

    Attributes:
        kernel: Sizes of the kernel.
        stride: Steps between neighbours of the output.
        padding: Zeros around the input.
        dilation: Steps between neighbours of the kernel.
        groups: Number of groups of channels that do not see each other.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, call: Call) -> Window:
        """The window of a call."""
        kernel = call["weight"].shape[2:]
        each = lambda name: tuple(call[name]) * (len(kernel) // len(call[name]))  # noqa: E731
        return cls(kernel, each("stride"), each("padding"), each("dilation"), call["groups"])

    def place(self, axis: int, t: Affine, k: Affine) -> Affine:
        """Where entry `k` of the kernel meets the padded input for element `t` of the output."""
        return t * self.stride[axis] + k * self.dilation[axis]

    def met(self, i: Index) -> Index:
        """What a column holds: channel, entry of the kernel, sample and place become sample, channel and place."""
        rank = len(self.kernel)
        kernel, out = i[1 : rank + 1], i[rank + 2 :]
        return [i[rank + 1], i[0], *(self.place(axis, out[axis], kernel[axis]) for axis in range(rank))]


def convolved(writer: Writer, x: Value, weight: Value, shape: tuple[int, ...], window: Window) -> Value | None:
    """The weights, a row for each channel of the result, times columns; `None` where loops are faster.

    Args:
        writer: Takes the loops.
        x: Samples, channels and places, with zeros around them.
        weight: Channels of the result, channels of x, and the kernel.
        shape: Sizes of the result: samples, channels, places.
        window: How the kernel moves.
    """
    inner, count = weight.numel // shape[1], shape[0] * math.prod(shape[2:])
    if not _pays(writer, window, x, weight, shape[1], inner, count):
        return None
    rows, columns = view(writer, weight, (shape[1], inner)), _columns(writer, x, window, shape)
    made = product(writer, rows, columns, (shape[1], count), weight.dtype)
    return _channels_first(view(writer, made, (shape[1], shape[0], *shape[2:])))


def deconvolved(writer: Writer, g: Value, weight: Value, shape: tuple[int, ...], window: Window) -> Value | None:
    """What each element of g sends to its window, added up where windows overlap; `None` where loops are faster.

    Args:
        writer: Takes the loops.
        g: Samples, channels and places.
        weight: Channels of g, channels of the result, and the kernel.
        shape: Sizes of the result: samples, channels, places.
        window: How the kernel moves over the result.
    """
    outs, count = g.shape[1], g.numel // g.shape[1]
    inner = weight.numel // outs
    if not _pays(writer, window, g, weight, inner, outs, count):
        return None
    unfolded = (shape[1], *window.kernel, g.shape[0], *g.shape[2:])
    rows = view(writer, weight, (outs, inner)).viewed((inner, outs), lambda i: [i[1], i[0]])
    columns = view(writer, writer.store(_channels_first(g)), (outs, count))
    sent = view(writer, product(writer, rows, columns, (inner, count), g.dtype), unfolded)
    around = (0, 0, *window.padding)
    grown = constant(0, g.dtype, tuple(n + 2 * p for n, p in zip(shape, around, strict=True)))
    total = writer.scatter(grown, sent, window.met, how="+=", meets=True)
    return total.viewed(shape, lambda i: [a + p for a, p in zip(i, around, strict=True)])


def correlated(writer: Writer, g: Value, x: Value, shape: tuple[int, ...], window: Window) -> Value | None:
    """Where output and input meet, for each entry of the weights; `None` where loops are faster."""
    inner, count = g.numel // g.shape[1], math.prod(shape[1:])
    if not _pays(writer, window, g, x, shape[0], inner, count):
        return None
    rows = view(writer, writer.store(_channels_first(g)), (shape[0], inner))
    columns = _columns(writer, x, window, g.shape)
    turned = columns.viewed((inner, count), lambda i: [i[1], i[0]])
    return view(writer, product(writer, rows, turned, (shape[0], count), g.dtype), shape)


def _channels_first(value: Value) -> Value:
    """Samples and channels change places."""
    shape = (value.shape[1], value.shape[0], *value.shape[2:])
    return value.viewed(shape, lambda i: [i[1], i[0], *i[2:]])


def _pays(writer: Writer, window: Window, a: Value, b: Value, rows: int, inner: int, columns: int) -> bool:
    alone = window.groups == 1 and writer.on_cpu and not (a.lanes or b.lanes)
    return alone and blas.is_faster(rows, inner, columns, a.dtype)


def _columns(writer: Writer, x: Value, window: Window, shape: tuple[int, ...]) -> Value:
    """All that the kernel meets: a row per channel and entry of the kernel, a column per place of each sample."""
    stored = writer.store(x.viewed((x.shape[1], *window.kernel, shape[0], *shape[2:]), window.met))
    rows = x.shape[1] * math.prod(window.kernel)
    return view(writer, stored, (rows, stored.numel // rows))
