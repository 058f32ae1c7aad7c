"""One tick of a group of layers for a batch of several samples: products of matrices, W and ω once from memory.

A program has some rows of one layer and goes over its columns twice: once for Wx of all samples, then, when δ of
its rows is known, for the message Wᵀδ, for ω and for W. The second time W comes from the cache. Products of
float32 are made of six products of bfloat16, which hold all of its 24 digits between them: the tensor cores take
those several times faster than plain float32, and no digit is lost as it would be in TensorFloat-32.

The rest is as in `single`, whose names it shares. This module is imported only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hamlearn.engine.fused.functions import slope_of, value_of

# fmt: off


@triton.jit(do_not_specialize=["k", "w_slot", "bias_slot"])
def tick(
    w_ptr, o_ptr, bias_ptr, bias_o_ptr,
    x_ptr, h_ptr, h1_ptr, z_ptr, z1_ptr, p_ptr, p1_ptr, next_p_ptr, next_z_ptr, line_ptr, delay_ptr, clock_ptr,
    rates_ptr, coupling_ptr, bad_ptr,
    k, layers, w_slot, bias_slot,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr, T: tl.constexpr, NEXT_T: tl.constexpr, S: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr, PRODUCTS: tl.constexpr,
    FUNCTION: tl.constexpr, SETTING: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    NEXT_RESIDUAL: tl.constexpr, ALIGNED: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):
    """A tick of some rows of one layer, for all samples."""
    program = tl.program_id(0)
    layer = program // T
    tile = program % T
    k_h = tl.load(rates_ptr)
    k_m = tl.load(rates_ptr + 1)
    k_z = tl.load(rates_ptr + 2)
    k_d = tl.load(rates_ptr + 3)
    decay = tl.load(rates_ptr + 4)
    w_scale = tl.load(rates_ptr + 5 + w_slot)
    bias_scale = tl.load(rates_ptr + 5 + bias_slot)
    WIDE: tl.constexpr = rates_ptr.dtype.element_ty
    NARROW: tl.constexpr = w_ptr.dtype.element_ty
    rows = tile * BM + tl.arange(0, BM)
    here = rows < M
    samples = tl.arange(0, BB)
    given = samples < B
    mine = (layer * B + samples[:, None]) * M + rows[None, :]
    inside = given[:, None] & here[None, :]
    w_at = w_ptr + layer.to(tl.int64) * (M * N) + rows[:, None] * N
    o_at = o_ptr + layer.to(tl.int64) * (M * N) + rows[:, None] * N
    # The states of a sequence that ended are left where they are, and taken as 0.
    if layer == 0:
        x_at = x_ptr
        k_x = k_h * 0 + 1 if FIRST else k_h
    else:
        x_at = h_ptr + (layer - 1) * (B * M)
        k_x = k_h
    if ALIGNED:
        now = tl.load(clock_ptr) + k
        then = now + S - tl.load(delay_ptr + layer)
        line_at = line_ptr + ((now % S) * layers + layer) * (B * N)
        past_at = line_ptr + ((then % S) * layers + layer) * (B * N)

    pre = tl.zeros([BB, BM], dtype=WIDE)
    past_pre = tl.zeros([BB, BM], dtype=WIDE)
    for first in range(0, N, BN):
        cols = first + tl.arange(0, BN)
        across = cols < N
        seen = given[:, None] & across[None, :]
        w = tl.load(w_at + cols[None, :], mask=here[:, None] & across[None, :], other=0.0).to(WIDE)
        x = tl.load(x_at + samples[:, None] * N + cols[None, :], mask=seen, other=0.0)
        pre = tl.dot(x, tl.trans(w), pre, input_precision=PRODUCTS, out_dtype=WIDE)
        if ALIGNED:
            past = tl.load(past_at + samples[:, None] * N + cols[None, :], mask=seen, other=0.0)
            past_pre = tl.dot(past, tl.trans(w), past_pre, input_precision=PRODUCTS, out_dtype=WIDE)

    if ALIGNED:  # noqa: SIM102 (known when the kernel is compiled, unlike the other)
        if tile == 0:
            for first in range(0, N, BN):
                cols = first + tl.arange(0, BN)
                seen = given[:, None] & (cols[None, :] < N)
                x = k_x * tl.load(x_at + samples[:, None] * N + cols[None, :], mask=seen, other=0.0)
                tl.store(line_at + samples[:, None] * N + cols[None, :], x, mask=seen)

    bias = tl.zeros([BM], dtype=WIDE)
    if BIAS:
        bias += tl.load(bias_ptr + layer * M + rows, mask=here, other=0.0).to(WIDE)
    pre = k_x * pre + bias[None, :]
    h1 = value_of(pre, FUNCTION, SETTING)
    if RESIDUAL:
        h1 += k_x * tl.load(x_at + samples[:, None] * N + rows[None, :], mask=inside, other=0.0)
    h = k_h * tl.load(h_ptr + mine, mask=inside, other=0.0)
    z = k_z * tl.load(z_ptr + mine, mask=inside, other=0.0)
    message = tl.zeros([BB, BM], dtype=WIDE)
    if layer < layers - 1:
        if k_m != 0:
            for t in range(T):
                part = ((layer + 1) * T + t) * (B * N) + samples[:, None] * N + rows[None, :]
                message += tl.load(p_ptr + part, mask=inside, other=0.0)
            if RESIDUAL:
                message += tl.load(z_ptr + mine + B * M, mask=inside, other=0.0)
            z += k_m * message
    else:
        factor = k_d if LAST else k_m
        if factor != 0:
            for t in range(NEXT_T):
                part = t * (B * M) + samples[:, None] * M + rows[None, :]
                message += tl.load(next_p_ptr + part, mask=inside, other=0.0)
            if NEXT_RESIDUAL:
                message += tl.load(next_z_ptr + samples[:, None] * M + rows[None, :], mask=inside, other=0.0)
            z += factor * message
    if ALIGNED:
        pre = past_pre + bias[None, :]
    delta = tl.where(inside, z * slope_of(pre, FUNCTION, SETTING), 0.0)
    tl.store(h1_ptr + mine, h1, mask=inside)
    tl.store(z1_ptr + mine, z, mask=inside)
    tl.store(coupling_ptr + program, tl.sum(tl.where(inside, z * (h1 - h), 0.0)))
    # A sum is finite only if all that it is made of is: whatever is not shows in the end.
    doubt = tl.sum(tl.where(inside, h1 + z, 0.0))
    if BIAS:
        bias_o = tl.load(bias_o_ptr + layer * M + rows, mask=here, other=0.0)
        bias_o1 = decay * bias_o + tl.sum(delta, 0)
        bias1 = (bias + bias_scale * bias_o).to(NARROW)
        tl.store(bias_o_ptr + layer * M + rows, bias_o1, mask=here)
        if bias_scale != 0:
            tl.store(bias_ptr + layer * M + rows, bias1, mask=here)
        doubt += tl.sum(bias_o1 + (bias1.to(WIDE) + bias_scale * bias_o1))

    met = tl.trans(delta if ALIGNED else k_x * delta)
    doubts = tl.zeros([BM, BN], dtype=WIDE)
    for first in range(0, N, BN):
        cols = first + tl.arange(0, BN)
        across = cols < N
        seen = given[:, None] & across[None, :]
        within = here[:, None] & across[None, :]
        w = tl.load(w_at + cols[None, :], mask=within, other=0.0).to(WIDE)
        o = tl.load(o_at + cols[None, :], mask=within, other=0.0)
        if ALIGNED:
            past = tl.load(past_at + samples[:, None] * N + cols[None, :], mask=seen, other=0.0)
        else:
            past = tl.load(x_at + samples[:, None] * N + cols[None, :], mask=seen, other=0.0)
        sent = tl.dot(delta, w, input_precision=PRODUCTS, out_dtype=WIDE)
        part = (layer * T + tile) * (B * N) + samples[:, None] * N + cols[None, :]
        tl.store(p1_ptr + part, sent, mask=seen)
        o1 = tl.dot(met, past, decay * o, input_precision=PRODUCTS, out_dtype=WIDE)
        w1 = (w + w_scale * o).to(NARROW)
        tl.store(o_at + cols[None, :], o1, mask=within)
        if w_scale != 0:
            tl.store(w_at + cols[None, :], w1, mask=within)
        doubts += o1 + (w1.to(WIDE) + w_scale * o1)
    if not tl.abs(doubt + tl.sum(doubts)) < float("inf"):
        tl.store(bad_ptr, 1)
# fmt: on
