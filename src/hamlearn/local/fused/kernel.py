"""One tick of a group of layers as a Triton kernel that reads and writes weights and costates once.

A program has some rows of one layer: W, and its costate ω, stay in registers while it computes

    z = κ_m Σ_tiles messages + κ_z z,   ĥ = σ(Wx + b) (+ x),   δ = z·σ′,
    message = Wᵀδ of its rows,          ω ← decay·ω + δxᵀ,     W ← W − τβ·ω.

Its part of the message is written down by itself and added up by the programs that need it, in the next tick, each
for its own rows: sums are always taken in the same order, and no kernel has to wait for another.

This module is imported only where Triton is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from triton.language.extra import libdevice

if TYPE_CHECKING:
    from hamlearn.local.fused.tick import Held, Ticks


@triton.jit
def _value(pre, FUNCTION: tl.constexpr, SETTING: tl.constexpr):
    """σ; what is not a number stays so."""
    if FUNCTION == "tanh":
        value = libdevice.tanh(pre)
    elif FUNCTION == "relu":
        value = tl.where(pre <= 0, 0.0, pre)
    elif FUNCTION == "sigmoid":
        value = 1 / (1 + tl.exp(-pre))
    elif FUNCTION == "silu":
        value = pre / (1 + tl.exp(-pre))
    elif FUNCTION == "gelu":
        value = 0.5 * pre * (1 + tl.erf(pre * 0.7071067811865476))
    elif FUNCTION == "elu":
        value = tl.where(pre > 0, pre, SETTING * libdevice.expm1(pre))
    elif FUNCTION == "leaky_relu":
        value = tl.where(pre > 0, pre, SETTING * pre)
    else:
        value = pre
    return value


@triton.jit
def _slope(pre, FUNCTION: tl.constexpr, SETTING: tl.constexpr):
    """σ′."""
    if FUNCTION == "tanh":
        value = libdevice.tanh(pre)
        slope = 1 - value * value
    elif FUNCTION == "relu":
        slope = tl.where(pre > 0, 1.0, 0.0)
    elif FUNCTION == "sigmoid":
        value = 1 / (1 + tl.exp(-pre))
        slope = value * (1 - value)
    elif FUNCTION == "silu":
        share = 1 / (1 + tl.exp(-pre))
        slope = share * (1 + pre * (1 - share))
    elif FUNCTION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * pre * pre)
        slope = 0.5 * (1 + tl.erf(pre * 0.7071067811865476)) + pre * density
    elif FUNCTION == "elu":
        slope = tl.where(pre > 0, 1.0, SETTING * tl.exp(pre))
    elif FUNCTION == "leaky_relu":
        slope = tl.where(pre > 0, pre * 0 + 1, pre * 0 + SETTING)  # in the precision of `pre`
    else:
        slope = pre * 0 + 1
    return slope


# fmt: off
@triton.jit
def _sample(
    b, k, layer, writes, w, bias, rows, cols, here, across,
    x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr, delay_ptr, clock_ptr,
    k_h, k_m, k_z, k_d,
    layers,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr, T: tl.constexpr, TP: tl.constexpr,
    NEXT_T: tl.constexpr, NEXT_TP: tl.constexpr, S: tl.constexpr,
    FUNCTION: tl.constexpr, SETTING: tl.constexpr, RESIDUAL: tl.constexpr, NEXT_RESIDUAL: tl.constexpr,
    ALIGNED: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):
    """States and costates of one sample; returns δ, the input it belongs to, Wᵀδ, z(ĥ − h) and ĥ + z."""
    # The states of a sequence that ended are left where they are, and taken as 0.
    k_x = 1.0 if FIRST else k_h
    if layer == 0:
        x = k_x * tl.load(x_ptr + b * N + cols, mask=across, other=0.0)
    else:
        x = k_h * tl.load(h_ptr + ((layer - 1) * B + b) * M + cols, mask=across, other=0.0)
    pre = tl.sum(w * x[None, :], 1) + bias
    h1 = _value(pre, FUNCTION, SETTING)
    if RESIDUAL:
        if layer == 0:
            h1 += k_x * tl.load(x_ptr + b * N + rows, mask=here, other=0.0)
        else:
            h1 += k_h * tl.load(h_ptr + ((layer - 1) * B + b) * M + rows, mask=here, other=0.0)
    mine = (layer * B + b) * M + rows
    h = k_h * tl.load(h_ptr + mine, mask=here, other=0.0)
    z = k_z * tl.load(z_ptr + mine, mask=here, other=0.0)
    if layer < layers - 1:
        if k_m != 0:
            tiles = tl.arange(0, TP)
            at = (((layer + 1) * T + tiles[:, None]) * B + b) * N + rows[None, :]
            parts = tl.load(p_ptr + at, mask=(tiles[:, None] < T) & here[None, :], other=0.0)
            message = tl.sum(parts, 0)
            if RESIDUAL:
                message += tl.load(z_ptr + mine + B * M, mask=here, other=0.0)
            z += k_m * message
    else:
        factor = k_d if LAST else k_m
        if factor != 0:
            tiles = tl.arange(0, NEXT_TP)
            at = (tiles[:, None] * B + b) * M + rows[None, :]
            parts = tl.load(next_p_ptr + at, mask=(tiles[:, None] < NEXT_T) & here[None, :], other=0.0)
            message = tl.sum(parts, 0)
            if NEXT_RESIDUAL:
                message += tl.load(next_z_ptr + b * M + rows, mask=here, other=0.0)
            z += factor * message
    if ALIGNED:
        now = tl.load(clock_ptr) + k
        delay = tl.load(delay_ptr + layer)
        if writes:
            tl.store(line_ptr + (((now % S) * layers + layer) * B + b) * N + cols, x, mask=across)
        then = (((now + S - delay) % S) * layers + layer) * B + b
        past = tl.load(line_ptr + then * N + cols, mask=across, other=0.0)
        pre = tl.sum(w * past[None, :], 1) + bias
    else:
        past = x
    delta = tl.where(here, z * _slope(pre, FUNCTION, SETTING), 0.0)
    tl.store(h1_ptr + mine, h1, mask=here)
    tl.store(z1_ptr + mine, z, mask=here)
    message = tl.sum(w * delta[:, None], 0)
    return delta, past, message, tl.where(here, z * (h1 - h), 0.0), tl.where(here, h1 + z, 0.0)


# Numbers that change from tick to tick must not lead to kernels of their own.
@triton.jit(do_not_specialize=["k", "w_slot", "bias_slot"])
def _tick(
    w_ptr, o_ptr, bias_ptr, bias_o_ptr,
    x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr, delay_ptr, clock_ptr,
    rates_ptr, coupling_ptr, bad_ptr,
    k, layers, w_slot, bias_slot,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr, T: tl.constexpr, TP: tl.constexpr,
    NEXT_T: tl.constexpr, NEXT_TP: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEPS: tl.constexpr,
    FUNCTION: tl.constexpr, SETTING: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    NEXT_RESIDUAL: tl.constexpr, ALIGNED: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):
    program = tl.program_id(0)
    layer = program // T
    tile = program % T
    cols = tl.arange(0, BN)
    across = cols < N
    k_h = tl.load(rates_ptr)
    k_m = tl.load(rates_ptr + 1)
    k_z = tl.load(rates_ptr + 2)
    k_d = tl.load(rates_ptr + 3)
    decay = tl.load(rates_ptr + 4)
    w_scale = tl.load(rates_ptr + 5 + w_slot)
    bias_scale = tl.load(rates_ptr + 5 + bias_slot)
    coupling = tl.zeros([BM], dtype=w_ptr.dtype.element_ty)
    # A sum is finite only if all that it is made of is: whatever is not shows in the end.
    doubt = tl.zeros([BM], dtype=w_ptr.dtype.element_ty)
    sent = tl.zeros([BN], dtype=w_ptr.dtype.element_ty)
    for step in range(STEPS):
        rows = (tile * STEPS + step) * BM + tl.arange(0, BM)
        here = rows < M
        inside = here[:, None] & across[None, :]
        at = layer.to(tl.int64) * (M * N) + rows[:, None] * N + cols[None, :]
        w = tl.load(w_ptr + at, mask=inside, other=0.0)
        o = tl.load(o_ptr + at, mask=inside, other=0.0)
        bias = tl.zeros([BM], dtype=w.dtype)
        if BIAS:
            bias += tl.load(bias_ptr + layer * M + rows, mask=here, other=0.0)
        writes = (tile == 0) & (step == 0)
        if B == 1:
            delta, past, message, coupled, looked = _sample(
                0, k, layer, writes, w, bias, rows, cols, here, across,
                x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr, delay_ptr,
                clock_ptr, k_h, k_m, k_z, k_d, layers,
                M, N, B, T, TP, NEXT_T, NEXT_TP, S,
                FUNCTION, SETTING, RESIDUAL, NEXT_RESIDUAL, ALIGNED, FIRST, LAST,
            )
            gained = delta[:, None] * past[None, :]
            bias_gained = delta
            sent += message
            coupling += coupled
            doubt += looked
        else:
            gained = tl.zeros([BM, BN], dtype=w.dtype)
            bias_gained = tl.zeros([BM], dtype=w.dtype)
            for b in range(B):
                delta, past, message, coupled, looked = _sample(
                    b, k, layer, writes, w, bias, rows, cols, here, across,
                    x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr,
                    delay_ptr, clock_ptr, k_h, k_m, k_z, k_d, layers,
                    M, N, B, T, TP, NEXT_T, NEXT_TP, S,
                    FUNCTION, SETTING, RESIDUAL, NEXT_RESIDUAL, ALIGNED, FIRST, LAST,
                )
                tl.store(p1_ptr + ((layer * T + tile) * B + b) * N + cols, message, mask=across)
                gained += delta[:, None] * past[None, :]
                bias_gained += delta
                coupling += coupled
                doubt += looked
        o1 = decay * o + gained
        w1 = w + w_scale * o
        tl.store(o_ptr + at, o1, mask=inside)
        if w_scale != 0:
            tl.store(w_ptr + at, w1, mask=inside)
        doubt += tl.sum(o1 + (w1 + w_scale * o1), 1)
        if BIAS:
            bias_o = tl.load(bias_o_ptr + layer * M + rows, mask=here, other=0.0)
            bias_o1 = decay * bias_o + bias_gained
            bias1 = bias + bias_scale * bias_o
            tl.store(bias_o_ptr + layer * M + rows, bias_o1, mask=here)
            if bias_scale != 0:
                tl.store(bias_ptr + layer * M + rows, bias1, mask=here)
            doubt += bias_o1 + (bias1 + bias_scale * bias_o1)
    if B == 1:
        tl.store(p1_ptr + (layer * T + tile) * N + cols, sent, mask=across)
    tl.store(coupling_ptr + program, tl.sum(coupling))
    if not tl.abs(tl.sum(doubt)) < float("inf"):
        tl.store(bad_ptr, 1)
# fmt: on


_NARROW = 512
"""Columns up to which a program is one warp with 2,048 entries of W at a time, four times; wider ones have two
warps with 4,096 entries, twice. Measured on an H200, where both reach about 80 % of the copy bandwidth."""


_WIDE_BATCHED = 16384
"""Entries of W that a program of a wide layer has for several samples, each of which leaves a message."""


def tile_rows(rows: int, columns: int, batch: int) -> int:
    """Rows that one program takes. In a batch of one its message is kept until all of them are through."""
    high, steps = _rows_at_once(rows, columns, batch), 4 if columns <= _NARROW else 2
    return high * min(steps if batch == 1 else 1, -(-rows // high))


def _rows_at_once(rows: int, columns: int, batch: int) -> int:
    tile = 2048 if columns <= _NARROW else 4096 if batch == 1 else _WIDE_BATCHED
    return max(1, min(triton.next_power_of_2(rows), tile // triton.next_power_of_2(columns)))


def launch(ticks: Ticks, held: Held, k: int) -> None:
    """Tick number k of a graph for one group, on the present stream."""
    group, now, after = held.group, k % 2, (k + 1) % 2
    layers, rows, columns = group.weight.shape
    before, behind = held.before, held.behind
    bias = group.bias
    x = ticks.u[k] if before is None else before.h[now, -1]
    wide, high = triton.next_power_of_2(columns), _rows_at_once(rows, columns, held.h.shape[2])
    next_parts = ticks.dl[now] if behind is None else behind.parts[now, 0]
    next_tiles = 1 if behind is None else behind.tiles
    _tick[(layers * held.tiles,)](
        group.weight,
        held.omega[0],
        group.weight if bias is None else bias,
        held.omega[-1],
        x,
        held.h[now],
        held.h[after],
        held.z[now],
        held.z[after],
        held.parts[now],
        held.parts[after],
        next_parts,
        held.z[now] if behind is None else behind.z[now, 0],
        held.h if held.line is None else held.line,
        ticks.bad if held.delays is None else held.delays,
        ticks.clock,
        ticks.rates[k],
        held.coupling[k],
        ticks.bad[k:],
        k,
        layers,
        group.slots[0],
        group.slots[-1],
        M=rows,
        N=columns,
        B=held.h.shape[2],
        T=held.tiles,
        TP=triton.next_power_of_2(held.tiles),
        NEXT_T=next_tiles,
        NEXT_TP=triton.next_power_of_2(next_tiles),
        S=1 if held.line is None else held.line.shape[0],
        BM=high,
        BN=wide,
        STEPS=held.tile // high,
        FUNCTION=group.function,
        SETTING=group.setting,
        BIAS=bias is not None,
        RESIDUAL=group.residual,
        NEXT_RESIDUAL=behind is not None and behind.group.residual,
        ALIGNED=held.line is not None,
        FIRST=before is None,
        LAST=behind is None,
        num_warps=_warps(high * wide, group.weight.element_size()),
    )


def _warps(entries: int, size: int) -> int:
    """One for each 2,048 entries of four bytes, 64 a thread."""
    return max(1, min(16, triton.next_power_of_2(entries * size // 8192)))
