"""One tick of a group of layers for a batch of one, as a Triton kernel that reads and writes W and ω once.

A program has some rows of one layer: W, and its costate ω, stay in registers while it computes

    z = κ_m Σ_tiles messages + κ_z z,   ĥ = σ(Wx + b) (+ x),   δ = z·σ′,
    message = Wᵀδ of its rows,          ω ← decay·ω + δxᵀ,     W ← W − τβ·ω.

Its part of the message is written down by itself and added up by the programs that need it, in the next tick, each
for its own rows: sums are always taken in the same order, and no kernel has to wait for another. W and b may be
narrower than everything else: they are widened when they are read, and rounded when they are written.

This module is imported only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hamlearn.engine.fused.functions import slope_of, value_of

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
