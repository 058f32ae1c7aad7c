"""Elementwise functions of layers and their derivatives, for the kernels of fused ticks.

This module is imported only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


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
