"""Convolutions, and their derivatives, as sums over shifted elements; large ones as products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hamlearn.loops.call import Call, require
from hamlearn.loops.indices import Affine, Index, counter
from hamlearn.loops.pointwise import elementwise
from hamlearn.loops.reductions import folded
from hamlearn.loops.values import Value, choice, computed, constant, literal
from hamlearn.loops.windows import Window, convolved, correlated, deconvolved
from hamlearn.loops.writer import SUM, Writer

aten = torch.ops.aten


def _channel(window: Window, of: Affine, per: int, own: int, inner: Affine) -> Affine:
    """Channel number `inner`, of `per`, in the group of channel `of`, where a group has `own` channels."""
    return inner if window.groups == 1 else counter(f"({of}) / {own}") * per + inner


def _padded(writer: Writer, x: Value, window: Window) -> Value:
    """The input with zeros around it."""
    if not any(window.padding):
        return writer.remember(x)
    shift = (0, 0, *window.padding)
    grown = constant(0, x.dtype, tuple(n + 2 * p for n, p in zip(x.shape, shift, strict=True)))
    return writer.scatter(grown, x, lambda i: [q + p for q, p in zip(i, shift, strict=True)])


def _spread(writer: Writer, g: Value, sizes: Sequence[int], window: Window) -> Value:
    """The output's elements, as far apart as they lie on the input, with zeros between and around them."""
    shift = [d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True)]
    needed = [n + p + q for n, p, q in zip(sizes, window.padding, shift, strict=True)]
    taken = [q + (n - 1) * s + 1 for n, s, q in zip(g.shape[2:], window.stride, shift, strict=True)]
    grown = constant(0, g.dtype, (*g.shape[:2], *map(max, needed, taken)))

    def place(i: Index) -> Index:
        return [*i[:2], *(q * s + p for q, p, s in zip(i[2:], shift, window.stride, strict=True))]

    return writer.scatter(grown, g, place)


def _summed(
    writer: Writer, at: Callable[..., str], inputs: list[Value], shape: Any, inner: tuple[int, ...]
) -> Value:
    """Σ over the axes `inner`; the last axis of `shape` lies innermost, where memory is read in order."""
    rank, last = len(shape), len(shape) + len(inner) - 1

    def terms(i: Index) -> str:
        return at([*i[: rank - 1], i[last]], i[rank - 1 : last])

    value = computed((*shape[:-1], *inner, shape[-1]), inputs[0].dtype, terms, inputs, 1)
    return folded(writer, value, list(range(rank - 1, last)), shape, value.dtype, SUM)


def _forward(writer: Writer, x: Value, weight: Value, shape: tuple[int, ...], window: Window) -> Value:
    x, weight = _padded(writer, x, window), writer.remember(weight)
    channels = weight.shape[1]
    found = convolved(writer, x, weight, shape, window)
    if found is not None:
        return found

    def at(out: Index, inner: Index) -> str:
        source = _channel(window, out[1], channels, weight.shape[0] // window.groups, inner[0])
        places = [window.place(axis, t, k) for axis, (t, k) in enumerate(zip(out[2:], inner[1:], strict=True))]
        return f"({x.at([out[0], source, *places])} * {weight.at([out[1], *inner])})"

    return _summed(writer, at, [x, weight], shape, (channels, *window.kernel))


def _to_input(writer: Writer, g: Value, weight: Value, shape: tuple[int, ...], window: Window) -> Value:
    g, weight = writer.remember(g), writer.remember(weight)
    found = deconvolved(writer, g, weight, shape, window)
    if found is not None:
        return found
    g, channels, outs = _spread(writer, g, shape[2:], window), weight.shape[1], weight.shape[0] // window.groups

    def at(out: Index, inner: Index) -> str:
        source = _channel(window, out[1], outs, channels, inner[0])
        places = []
        for axis, (a, k) in enumerate(zip(out[2:], inner[1:], strict=True)):
            dilation = window.dilation[axis]
            start = window.padding[axis] + dilation * (window.kernel[axis] - 1)
            places.append(a + k * -dilation + start)
        own = out[1] if window.groups == 1 else counter(f"({out[1]}) % {channels}")
        return f"({g.at([out[0], source, *places])} * {weight.at([source, own, *inner[1:]])})"

    return _summed(writer, at, [g, weight], shape, (outs, *window.kernel))


def _to_weight(writer: Writer, g: Value, x: Value, shape: tuple[int, ...], window: Window) -> Value:
    g, x = writer.remember(g), _padded(writer, x, window)
    rank = len(shape)
    found = correlated(writer, g, x, shape, window)
    if found is not None:
        return found

    def at(i: Index) -> str:
        source = _channel(window, i[0], shape[1], shape[0] // window.groups, i[1])
        batch, *outs = i[rank:]
        places = [window.place(axis, t, k) for axis, (t, k) in enumerate(zip(outs, i[2:rank], strict=True))]
        return f"({g.at([batch, i[0], *outs])} * {x.at([batch, source, *places])})"

    value = computed((*shape, g.shape[0], *g.shape[2:]), g.dtype, at, [g, x], 1)
    return folded(writer, value, list(range(rank, len(value.shape))), shape, value.dtype, SUM)


def _convolution(writer: Writer, call: Call) -> Value:
    result = (_to_input if call["transposed"] else _forward)(
        writer, call["input"], call["weight"], call.shape, Window.of(call)
    )
    bias = call["bias"]
    if bias is None:
        return result
    rest = (1,) * (len(call.shape) - 2)
    column = bias.viewed((*bias.shape, *rest), lambda i: i[:1])
    return elementwise(writer, "({0} + {1})", [result, column], call.shape, call.dtype)


def _backward(writer: Writer, call: Call) -> list[Value | None]:
    g, x, weight = call["grad_output"], writer.remember(call["input"]), writer.remember(call["weight"])
    g, window, asked = writer.remember(g), Window.of(call), call["output_mask"]
    across = call["transposed"]
    axes = [axis for axis in range(len(g.shape)) if axis != 1]
    return [
        (_forward if across else _to_input)(writer, g, weight, x.shape, window) if asked[0] else None,
        _to_weight(writer, *((x, g) if across else (g, x)), weight.shape, window) if asked[1] else None,
        folded(writer, g, axes, (g.shape[1],), g.dtype, SUM) if asked[2] else None,
    ]


def _average(writer: Writer, call: Call) -> Value:
    """Averages over windows: a convolution of each channel with equal weights."""
    x, kernel = call["self"], tuple(call["kernel_size"])
    plain = call["count_include_pad"] or not any(call["padding"])
    require(
        len(x.shape) == 4 and len(kernel) == 2 and plain and not call["ceil_mode"], "such an average over windows"
    )
    padding = tuple(call["padding"]) * (2 // len(call["padding"]))
    window = Window(kernel, tuple(call["stride"]) or kernel, padding, (1, 1), x.shape[1])
    share = 1 / (call["divisor_override"] or kernel[0] * kernel[1])
    weight = constant(share, x.dtype, (x.shape[1], 1, *kernel))
    if call.op is aten.avg_pool2d:
        return _forward(writer, x, weight, call.shape, window)
    g = writer.remember(call["grad_output"])
    if window.stride == kernel and not any(padding):
        return _shared_out(g, call.shape, kernel, share)
    return _to_input(writer, g, weight, call.shape, window)


def _shared_out(g: Value, shape: tuple[int, ...], kernel: tuple[int, ...], share: float) -> Value:
    """The derivative of averages over windows that do not overlap: each element has a part of its own window's."""
    part = literal(share, g.dtype)

    def at(i: Index) -> str:
        windows, inside = [*i[:2]], []
        for place, length, size, count in zip(i[2:], shape[2:], kernel, g.shape[2:], strict=True):
            covered = size * count
            windows.append(
                counter(f"({place}) / {size}" if covered == length else f"clip(({place}) / {size}, {count})")
            )
            inside += [] if covered == length else [f"({place} < {covered})"]
        found = f"({g.at(windows)} * {part})"
        return choice(g.dtype, " & ".join(inside), found, "0") if inside else found

    return computed(shape, g.dtype, at, [g], 1)


CONVOLUTIONS: dict[Any, Callable[[Writer, Call], Any]] = {
    aten.convolution: _convolution,
    aten.convolution_backward: _backward,
    **dict.fromkeys((aten.avg_pool2d, aten.avg_pool2d_backward), _average),
}
