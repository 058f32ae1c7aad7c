"""Ticks of a group of layers on a GPU: which kernel, how its programs are cut, and its launch.

This module is imported only where Triton is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton

from hamlearn.engine.fused import batched, single

if TYPE_CHECKING:
    from hamlearn.engine.fused.tick import Held, Ticks

_NARROW = 512
"""Columns up to which a program for a batch of one is one warp with 2,048 entries of W at a time, four times;
wider ones have two warps with 4,096 entries, twice. On an H200 both reach about 80 % of the copy bandwidth."""
_TILE, _FEW = 64, 8
"""Rows of W that a program for several samples has, by four warps, and columns that it has in hand at a time, in
float32; for few samples half as many rows, by two warps. Measured on an H200."""


def tile_rows(rows: int, columns: int, batch: int) -> int:
    """Rows that one program takes, each tile of which leaves a message for every sample."""
    if batch > 1:
        # A product needs sixteen of each.
        return max(16, min(triton.next_power_of_2(rows), _TILE // 2 if batch <= _FEW else _TILE))
    high = _rows_at_once(rows, columns)
    return high * min(4 if columns <= _NARROW else 2, -(-rows // high))


def _rows_at_once(rows: int, columns: int) -> int:
    tile = 2048 if columns <= _NARROW else 4096
    return max(1, min(triton.next_power_of_2(rows), tile // triton.next_power_of_2(columns)))


def launch(ticks: Ticks, held: Held, k: int) -> None:
    """Tick number k of a graph for one group, on the present stream."""
    group, now, after = held.group, k % 2, (k + 1) % 2
    layers, rows, columns = group.weight.shape
    before, behind, bias, samples = held.before, held.behind, group.bias, held.h.shape[2]
    tensors = (
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
    )
    numbers = (k, layers, group.slots[0], group.slots[-1])
    settings: dict[str, Any] = {
        "M": rows,
        "N": columns,
        "T": held.tiles,
        "NEXT_T": 1 if behind is None else behind.tiles,
        "S": 1 if held.line is None else held.line.shape[0],
        "FUNCTION": group.function,
        "SETTING": group.setting,
        "BIAS": bias is not None,
        "RESIDUAL": group.residual,
        "NEXT_RESIDUAL": behind is not None and behind.group.residual,
        "ALIGNED": held.line is not None,
        "FIRST": before is None,
        "LAST": behind is None,
    }
    if samples == 1:
        kernel, shape = single.tick, _for_one(settings, held)
    else:
        kernel, shape = batched.tick, _for_many(settings, held)
    kernel[(layers * held.tiles,)](*tensors, *numbers, **settings, **shape)


def _for_one(settings: dict[str, Any], held: Held) -> dict[str, Any]:
    wide, high = triton.next_power_of_2(settings["N"]), _rows_at_once(settings["M"], settings["N"])
    return {
        "TP": triton.next_power_of_2(settings["T"]),
        "NEXT_TP": triton.next_power_of_2(settings["NEXT_T"]),
        "BM": high,
        "BN": wide,
        "STEPS": held.tile // high,
        # One for each 2,048 entries of four bytes, 64 a thread.
        "num_warps": max(1, min(16, triton.next_power_of_2(high * wide * held.z.element_size() // 8192))),
    }


def _for_many(settings: dict[str, Any], held: Held) -> dict[str, Any]:
    samples, double = held.h.shape[2], held.z.element_size() == 8
    return {
        "B": samples,
        "BB": max(16, triton.next_power_of_2(samples)),
        "BM": held.tile,
        "BN": max(16, min(triton.next_power_of_2(settings["N"]), _TILE // 2 if double else _TILE)),
        "PRODUCTS": "ieee" if double else "bf16x6",
        "num_warps": 2 if samples <= _FEW else 4,
        "num_stages": 3,
    }
