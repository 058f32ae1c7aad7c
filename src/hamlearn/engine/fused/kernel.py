"""One tick of a group of layers, as a Triton kernel that reads and writes W and ω once.

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
    from hamlearn.engine.fused.tick import Held, Ticks

_NARROW = 512
"""Columns up to which a program is one warp with 2,048 entries of W at a time, four times; wider ones have two
warps with 4,096 entries, twice. On an H200 both reach about 80 % of the copy bandwidth."""


@triton.jit
def value_of(pre, FUNCTION: tl.constexpr, SETTING: tl.constexpr):
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
def slope_of(pre, FUNCTION: tl.constexpr, SETTING: tl.constexpr):
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
# Numbers that change from tick to tick must not lead to kernels of their own.
@triton.jit(do_not_specialize=["k", "w_slot", "bias_slot"])
def tick(
    w_ptr, o_ptr, bias_ptr, bias_o_ptr,
    x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr, delay_ptr, clock_ptr,
    rates_ptr, coupling_ptr, bad_ptr,
    k, layers, w_slot, bias_slot,
    M: tl.constexpr, N: tl.constexpr, T: tl.constexpr, TP: tl.constexpr,
    NEXT_T: tl.constexpr, NEXT_TP: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEPS: tl.constexpr,
    FUNCTION: tl.constexpr, SETTING: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    NEXT_RESIDUAL: tl.constexpr, ALIGNED: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):
    """A tick of some rows of one layer."""
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
    WIDE: tl.constexpr = rates_ptr.dtype.element_ty
    NARROW: tl.constexpr = w_ptr.dtype.element_ty
    coupling = tl.zeros([BM], dtype=WIDE)
    # A sum is finite only if all that it is made of is: whatever is not shows in the end.
    doubt = tl.zeros([BM], dtype=WIDE)
    sent = tl.zeros([BN], dtype=WIDE)
    for step in range(STEPS):
        rows = (tile * STEPS + step) * BM + tl.arange(0, BM)
        here = rows < M
        inside = here[:, None] & across[None, :]
        at = layer.to(tl.int64) * (M * N) + rows[:, None] * N + cols[None, :]
        w = tl.load(w_ptr + at, mask=inside, other=0.0).to(WIDE)
        o = tl.load(o_ptr + at, mask=inside, other=0.0)
        bias = tl.zeros([BM], dtype=WIDE)
        if BIAS:
            bias += tl.load(bias_ptr + layer * M + rows, mask=here, other=0.0).to(WIDE)
        # The states of a sequence that ended are left where they are, and taken as 0.
        k_x = 1.0 if FIRST else k_h
        if layer == 0:
            x = k_x * tl.load(x_ptr + cols, mask=across, other=0.0)
        else:
            x = k_h * tl.load(h_ptr + (layer - 1) * M + cols, mask=across, other=0.0)
        pre = tl.sum(w * x[None, :], 1) + bias
        h1 = value_of(pre, FUNCTION, SETTING)
        if RESIDUAL:
            if layer == 0:
                h1 += k_x * tl.load(x_ptr + rows, mask=here, other=0.0)
            else:
                h1 += k_h * tl.load(h_ptr + (layer - 1) * M + rows, mask=here, other=0.0)
        mine = layer * M + rows
        h = k_h * tl.load(h_ptr + mine, mask=here, other=0.0)
        z = k_z * tl.load(z_ptr + mine, mask=here, other=0.0)
        if layer < layers - 1:
            if k_m != 0:
                tiles = tl.arange(0, TP)
                places = ((layer + 1) * T + tiles[:, None]) * N + rows[None, :]
                parts = tl.load(p_ptr + places, mask=(tiles[:, None] < T) & here[None, :], other=0.0)
                message = tl.sum(parts, 0)
                if RESIDUAL:
                    message += tl.load(z_ptr + mine + M, mask=here, other=0.0)
                z += k_m * message
        else:
            factor = k_d if LAST else k_m
            if factor != 0:
                tiles = tl.arange(0, NEXT_TP)
                places = tiles[:, None] * M + rows[None, :]
                parts = tl.load(next_p_ptr + places, mask=(tiles[:, None] < NEXT_T) & here[None, :], other=0.0)
                message = tl.sum(parts, 0)
                if NEXT_RESIDUAL:
                    message += tl.load(next_z_ptr + rows, mask=here, other=0.0)
                z += factor * message
        if ALIGNED:
            now = tl.load(clock_ptr) + k
            delay = tl.load(delay_ptr + layer)
            if (tile == 0) & (step == 0):
                tl.store(line_ptr + ((now % S) * layers + layer) * N + cols, x, mask=across)
            then = ((now + S - delay) % S) * layers + layer
            past = tl.load(line_ptr + then * N + cols, mask=across, other=0.0)
            pre = tl.sum(w * past[None, :], 1) + bias
        else:
            past = x
        delta = tl.where(here, z * slope_of(pre, FUNCTION, SETTING), 0.0)
        tl.store(h1_ptr + mine, h1, mask=here)
        tl.store(z1_ptr + mine, z, mask=here)
        sent += tl.sum(w * delta[:, None], 0)
        coupling += tl.where(here, z * (h1 - h), 0.0)
        doubt += tl.where(here, h1 + z, 0.0)
        o1 = decay * o + delta[:, None] * past[None, :]
        w1 = (w + w_scale * o).to(NARROW)
        tl.store(o_ptr + at, o1, mask=inside)
        if w_scale != 0:
            tl.store(w_ptr + at, w1, mask=inside)
        doubt += tl.sum(o1 + (w1.to(WIDE) + w_scale * o1), 1)
        if BIAS:
            bias_o = tl.load(bias_o_ptr + layer * M + rows, mask=here, other=0.0)
            bias_o1 = decay * bias_o + delta
            bias1 = (bias + bias_scale * bias_o).to(NARROW)
            tl.store(bias_o_ptr + layer * M + rows, bias_o1, mask=here)
            if bias_scale != 0:
                tl.store(bias_ptr + layer * M + rows, bias1, mask=here)
            doubt += bias_o1 + (bias1.to(WIDE) + bias_scale * bias_o1)
    tl.store(p1_ptr + (layer * T + tile) * N + cols, sent, mask=across)
    tl.store(coupling_ptr + program, tl.sum(coupling))
    if not tl.abs(tl.sum(doubt)) < float("inf"):
        tl.store(bad_ptr, 1)
# fmt: on


def tile_rows(rows: int, columns: int) -> int:
    """Rows that one program takes, each tile of which leaves a message."""
    high = _rows_at_once(rows, columns)
    return high * min(4 if columns <= _NARROW else 2, -(-rows // high))


def _rows_at_once(rows: int, columns: int) -> int:
    tile = 2048 if columns <= _NARROW else 4096
    return max(1, min(triton.next_power_of_2(rows), tile // triton.next_power_of_2(columns)))


def launch(ticks: Ticks, held: Held, k: int) -> None:
    """Tick number k of a graph for one group, on the present stream."""
    group, now, after = held.group, k % 2, (k + 1) % 2
    layers, rows, columns = group.weight.shape
    before, behind, bias = held.before, held.behind, group.bias
    next_tiles = 1 if behind is None else behind.tiles
    high, wide = _rows_at_once(rows, columns), triton.next_power_of_2(columns)
    tick[(layers * held.tiles,)](
        group.weight,
        held.omega[0],
        group.weight if bias is None else bias,
        held.omega[-1],
        ticks.u[k] if before is None else before.h[now, -1],
        held.h[now],
        held.h[after],
        held.z[now],
        held.z[after],
        held.parts[now],
        held.parts[after],
        ticks.dl[now] if behind is None else behind.parts[now, 0],
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
        # One for each 2,048 entries of four bytes, 64 a thread.
        num_warps=max(1, min(16, triton.next_power_of_2(high * wide * held.z.element_size() // 8192))),
    )
