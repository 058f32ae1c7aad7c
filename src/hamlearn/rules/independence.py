"""Whether the units of a state net see their own past only, found out by trying."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn._base.replay import devices_of
from hamlearn._base.torch_private import tree_map_only
from hamlearn.errors import ConfigError
from hamlearn.rules.columns import ColumnLayer
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.system import System


def require_independent(system: System, layers: list[ColumnLayer], u: Any, h: list[Tensor]) -> None:
    """Raise, with the name of what couples them, unless the units of every layer are independent.

    Each layer is run at weights and states drawn at random, since at the first ones, zero perhaps, a coupling may
    not show. For independent units the product of any vector with the Jacobian is, unit by unit, the vector times
    the product with ones: so one vector drawn at random decides. Derivatives that a cell tells itself are put to
    the same test.
    """
    draw = torch.Generator().manual_seed(0)
    u = tree_map_only(Tensor, lambda leaf: _finite(leaf, draw), u)
    tried = {name: _near(weight, draw) for name, weight in system.network.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in system.network.named_buffers()}
    with torch.random.fork_rng(devices_of(system.theta)), system.slots.exchanged(tried | buffers):
        for layer in layers:
            state = [_near(leaf, draw) for leaf in h[layer.slots]]
            _Trial(system, layer, tried, draw).require(u, state)
            u = layer.shown(state) if layer is not layers[-1] else u


class _Trial:
    def __init__(
        self, system: System, layer: ColumnLayer, tried: dict[str, Tensor], draw: torch.Generator
    ) -> None:
        self.layer, self.tried, self.draw = layer, tried, draw
        self.names = system.names
        self.theta = [tried[name] for name in system.names]
        self.cell = type(layer.cell).__name__

    def require(self, u: Any, state: list[Tensor]) -> None:
        layer, k = self.layer, len(state)
        found = layer.local(u, state, self.theta)
        weights = [self.theta[index] for index in layer.weights]
        for a, (leaf, along, products) in enumerate(self._products(u, state, weights)):
            if not _close(found.result[a], leaf):
                raise ConfigError(
                    f"{self.cell} gives other values for a batch than for its rows one by one, or its local(u, h) "
                    "is not what it computes, so that hl.Sensitivity() cannot follow it: use hl.Echo()"
                )
            if not all(_close(along * found.J[a][c], products[c]) for c in range(k)):
                raise ConfigError(self._refusal(self._culprit(u, state)))
            for number, index in enumerate(layer.weights):
                local = layer.tile(along, weights[number]) * found.F[number][a]
                if not _close(local.sum_to_size(weights[number].shape), products[k + number]):
                    raise ConfigError(self._refusal(f"the parameter {self.names[index]!r}"))

    def _products(
        self, u: Any, state: list[Tensor], weights: list[Tensor]
    ) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
        """For each slot: its value, a vector drawn at random, and the vector's products with the Jacobians."""
        with torch.enable_grad():
            points = [leaf.detach().requires_grad_() for leaf in state]
            result = self.layer(u, points)
        found = []
        for leaf in result:
            along = torch.randn(leaf.shape, generator=self.draw, dtype=leaf.dtype).to(leaf.device)
            found.append((leaf.detach(), along, vjp([leaf], [along], [*points, *weights], keep=True)))
        return found

    def _culprit(self, u: Any, state: list[Tensor]) -> str:
        """The parameter without which the units would be independent, if there is one."""
        own = {id(weight) for weight in self.layer.cell.parameters()}
        for name, weight in self.tried.items():
            if id(weight) not in own:
                continue
            kept = weight.detach().clone()
            with torch.no_grad():
                weight.zero_()
            ones = self.layer.local(u, state, self.theta).J
            free = all(
                _close(along * ones[a][c], products[c])
                for a, (_, along, products) in enumerate(self._products(u, state, []))
                for c in range(len(state))
            )
            with torch.no_grad():
                weight.copy_(kept)
            if free:
                return f"the parameter {name!r}"
        return "the state h"

    def _refusal(self, what: str) -> str:
        return (
            f"the units of {self.cell} are not independent: {what} couples them, so that hl.Sensitivity() "
            "would not be exact. Use a cell of hl.cells, such as hl.cells.ColumnarGRU, or hl.Echo(); with "
            "strict=False each unit keeps its own part only (SnAp-1)"
        )


def _near(tensor: Tensor, draw: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype).to(tensor.device)
    return (tensor.detach() + 0.1 * noise).requires_grad_(tensor.requires_grad)


def _finite(leaf: Tensor, draw: torch.Generator) -> Tensor:
    """An input with numbers in the place of what is not finite, which the step itself tells of."""
    if not leaf.is_floating_point() or bool(leaf.isfinite().all()):
        return leaf
    return torch.where(leaf.isfinite(), leaf, _near(torch.zeros_like(leaf), draw))


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.numel():
        return True
    rounding = 1e4 * torch.finfo(other.dtype).eps
    return bool(((one - other).abs() <= rounding * max(1.0, float(other.abs().max()))).all())
