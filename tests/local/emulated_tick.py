"""The fused tick of one group in plain tensor operations, over the same memory as the kernel.

All memory that the kernel writes is written, so that what holds the ticks together can be tested without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FUNCTIONS: dict[str, Any] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "elu": nn.functional.elu,
    "leaky_relu": nn.functional.leaky_relu,
    "identity": lambda x: x,
}


def tile_rows(rows: int, columns: int) -> int:
    return 2


def slope(function: Any, pre: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = pre.detach().requires_grad_()
        return torch.autograd.grad(function(leaf).sum() + 0 * leaf.sum(), leaf)[0]


def launch(ticks: Any, held: Any, k: int) -> None:
    group, now, after = held.group, k % 2, (k + 1) % 2
    k_h, k_m, k_z, k_d, decay = ticks.rates[k, :5].tolist()
    scales = ticks.rates[k, 5:].tolist()
    layers = group.weight.shape[0]
    function = FUNCTIONS[group.function]
    setting = (group.setting,) if group.function in ("elu", "leaky_relu") else ()
    sigma = lambda x: function(x, *setting)  # noqa: E731
    x0 = ticks.u[k] if held.before is None else k_h * held.before.h[now, -1]
    for layer in range(layers):
        x = x0 if layer == 0 else k_h * held.h[now, layer - 1]
        W = group.weight[layer].clone()
        b = torch.zeros(len(W)).to(W) if group.bias is None else group.bias[layer].clone()
        pre = x @ W.T + b
        h1 = sigma(pre) + (x if group.residual else 0)
        z = k_z * held.z[now, layer]
        if layer < layers - 1:
            if k_m:
                z = z + k_m * (held.parts[now, layer + 1].sum(0) + group.residual * held.z[now, layer + 1])
        elif held.behind is None:
            z = z + k_d * ticks.dl[now] if k_d else z
        elif k_m:
            z = z + k_m * held.behind.parts[now, 0].sum(0)
            z = z + k_m * held.behind.z[now, 0] if held.behind.group.residual else z
        past = x
        if held.line is not None:
            clock, size = int(ticks.clock) + k, len(held.line)
            held.line[clock % size, layer] = x
            past = held.line[(clock - int(held.delays[layer])) % size, layer].clone()
            pre = past @ W.T + b
        delta = z * slope(sigma, pre)
        flaws = ~(h1.isfinite().all() & z.isfinite().all())
        for tile in range(held.tiles):
            rows = slice(tile * held.tile, (tile + 1) * held.tile)
            held.parts[after, layer, tile] = delta[rows] @ W[rows]
            couple = (z * (h1 - k_h * held.h[now, layer]))[rows].sum()
            held.coupling[k, layer * held.tiles + tile] = couple
        held.h[after, layer], held.z[after, layer] = h1, z
        moved = [(group.weight, held.omega[0], torch.outer(delta, past), group.slots[0])]
        if group.bias is not None:
            moved.append((group.bias, held.omega[1], delta, group.slots[1]))
        for weight, omega, gained, slot in moved:
            scale, old = scales[slot], omega[layer].clone()
            omega[layer] = decay * old + gained
            weight[layer] += scale * old
            after_it = weight[layer] + scale * omega[layer]
            flaws |= ~(omega[layer].isfinite().all() & after_it.isfinite().all())
        if flaws:
            ticks.bad[k, 0] = 1
