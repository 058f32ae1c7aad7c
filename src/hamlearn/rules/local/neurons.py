"""A directed graph of single neurons: a masked weight matrix, or a list of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


class Neurons(nn.Module):
    """Neurons that each read the outputs of others, and the input, of the tick before.

    ĥ_j = σ(Σ_i h_i W_ij + Σ_k u_k V_kj + b_j), over the edges i → j of `adjacency` and k → j of `inputs`.

    Args:
        adjacency: n × n; an entry (i, j) that is not 0 is an edge from neuron i to neuron j. Dense: the weights
            are an n × n matrix, masked. Sparse (any layout): they are a list, one per edge, and a tick costs as
            much as there are edges.
        inputs: How the input enters: a k × n matrix read like `adjacency` (dense), or a number k of inputs that
            every neuron reads.
        outputs: Neurons that are read as y, in this order.
        activation: σ.
        bias: Whether neurons have a bias b.

    Parameters are named `weight` (W), `weight_in` (V) and `bias`; outside the edges W and V are 0 and stay so.

    Example:
        >>> import torch
        >>> ring = Neurons(torch.eye(4).roll(1, 1), inputs=2, outputs=[3])
        >>> ring(torch.zeros(5, 2), torch.zeros(5, 4)).shape
        torch.Size([5, 4])
    """

    mask: Tensor
    mask_in: Tensor
    edges: Tensor

    def __init__(
        self,
        adjacency: Tensor,
        inputs: Tensor | int,
        outputs: Sequence[int],
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if adjacency.dim() != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise ConfigError(
                f"adjacency has shape {tuple(adjacency.shape)}: it must be square, neurons × neurons"
            )
        self.size = n = int(adjacency.shape[0])
        mask_in = torch.ones(inputs, n) if isinstance(inputs, int) else inputs
        if mask_in.dim() != 2 or mask_in.shape[1] != n:
            raise ConfigError(
                f"inputs has shape {tuple(mask_in.shape)}: it must be inputs × {n} neurons, or a number"
            )
        if not outputs or not all(0 <= i < n for i in outputs):
            raise ConfigError(f"outputs={list(outputs)} must name one or more of the neurons 0 to {n - 1}")
        self.outputs = tuple(outputs)
        self.activation = activation
        self.sparse = adjacency.layout != torch.strided
        real = torch.get_default_dtype()
        self.register_buffer("mask_in", (mask_in != 0).to(real))
        if self.sparse:
            given = adjacency.to_sparse_coo().coalesce()
            self.register_buffer("edges", given.indices()[:, given.values() != 0])
            fan_in = torch.bincount(self.edges[1], minlength=n)[self.edges[1]]
        else:
            self.register_buffer("mask", (adjacency != 0).to(real))
            fan_in = self.mask.sum(0)
        shape = fan_in.shape if self.sparse else (n, n)
        scale = fan_in.clamp(min=1).to(real).rsqrt()
        self.weight = nn.Parameter((2 * torch.rand(shape) - 1) * scale)
        scale_in = self.mask_in.sum(0).clamp(min=1).rsqrt()
        self.weight_in = nn.Parameter((2 * torch.rand(self.mask_in.shape) - 1) * scale_in * self.mask_in)
        if not self.sparse:
            self.weight.data.mul_(self.mask)
        self.bias = nn.Parameter(torch.zeros(n)) if bias else None

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        """ĥ of all neurons, from the input and from all outputs of the tick before."""
        total = u @ (self.weight_in * self.mask_in)
        if self.sparse:
            source, target = self.edges
            total = total.index_add(-1, target, h.index_select(-1, source) * self.weight)
        else:
            total = total + h @ (self.weight * self.mask)
        return self.activation(total if self.bias is None else total + self.bias)

    def read(self, h: Tensor) -> Tensor:
        """y, the outputs of the neurons in `outputs`."""
        return h[..., list(self.outputs)]

    def start(self, u: Tensor) -> Tensor:
        """Zeros for each neuron, sized by the batch of u."""
        return self.weight.new_zeros(*u.shape[:-1], self.size)
