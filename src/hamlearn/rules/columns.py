"""Layers of a state whose units see their own past only: how each moves on, and its derivatives unit by unit.

The state of a layer has k slots, tensors of shape (batch…, units). Of a weight of shape (m·units, …) unit i owns
the rows i, units + i, … along the first axis, as gates that are stacked lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn.errors import ConfigError, SampleError
from hamlearn.network import Network
from hamlearn.rules.derivatives import vjp
from hamlearn.rules.transition import as_state

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Local(NamedTuple):
    """What a layer returns, and how it depends on its state and its weights.

    Attributes:
        result: What the layer returns, a tensor per slot.
        J: ∂result[a]/∂h[c], each of shape (batch…, units).
        F: ∂result[a]/∂θ for each weight, of the shape (batch…, *shape of the weight).
    """

    result: list[Tensor]
    J: list[list[Tensor]]
    F: list[list[Tensor]]


@dataclass
class ColumnLayer:
    """One layer of the state net.

    Attributes:
        network: The network that the layer is a part of.
        cell: The module, called as `cell(u, h)`.
        units: Number of units.
        slots: Where its part of the flat state begins and ends.
        spec: Structure of its part of the state.
        names: Names of its learnable weights, relative to the cell.
        weights: Which of the learner's weights these are, by index.
        starts: Weights that are the first value of a slot: index of the weight, and of the slot.
        show: From its state to what the layer above reads.
        coupled: Whether its units may see each other's past, of which only their own is then followed.
    """

    network: Network
    cell: Any
    units: int
    slots: slice
    spec: trees.Spec
    names: list[str]
    weights: list[int]
    starts: list[tuple[int, int]]
    show: Callable[[Any], Any]
    coupled: bool

    def __call__(self, u: Any, h: list[Tensor]) -> list[Tensor]:
        """What the layer returns."""
        return as_state(self.network.state_part(self.cell, u, trees.unflatten(h, self.spec)), h, self.spec)

    def shown(self, h: list[Tensor]) -> Any:
        """What the layer above reads."""
        return self.show(trees.unflatten(h, self.spec))

    def tile(self, along: Tensor, weight: Tensor) -> Tensor:
        """A number for each unit, of shape (batch…, units), laid out to multiply what belongs to a weight."""
        gates = weight.shape[0] // self.units
        rows = along if gates == 1 else torch.cat([along] * gates, -1)
        return rows.reshape(*rows.shape, *[1] * (weight.dim() - 1))

    def local(self, u: Any, h: list[Tensor], theta: list[Tensor]) -> Local:
        """The layer at (u, h), with its derivatives: in closed form where the cell has one, else by PyTorch."""
        if hasattr(self.cell, "local"):
            with torch.no_grad():
                result, J, F = self.network.state_part(self.cell.local, u, list(h))
            # A weight that the closed form does not know stands behind one that it does, as in a parametrization.
            if all(name in F for name in self.names):
                _require_like(result, h)
                return Local(list(result), J, [F[name] for name in self.names])
        weights = [theta[index] for index in self.weights]
        batch = h[0].shape[:-1]
        if batch.numel() == 1:
            return self._lane(u, h, weights)
        if len(batch) > 1:
            raise SampleError(
                f"the state has {len(batch)} axes before its units, and {type(self.cell).__name__} has no "
                "local(u, h) that tells its derivatives: use one batch axis"
            )
        lanes = [
            self._lane(_lane_of(u, lane, batch[0]), [leaf[lane : lane + 1] for leaf in h], weights)
            for lane in range(batch[0])
        ]
        joined = [[torch.cat(parts) for parts in zip(*rows, strict=True)] for rows in _rows(lanes)]
        k, n = len(h), len(weights)
        return Local(joined[0], joined[1 : 1 + k], joined[1 + k : 1 + k + n])

    def _lane(self, u: Any, h: list[Tensor], weights: list[Tensor]) -> Local:
        """All derivatives for a batch of one, by one vector-Jacobian product with ones for each slot."""
        with torch.enable_grad():
            points = [leaf.detach().requires_grad_() for leaf in h]
            result = self(u, points)
        J: list[list[Tensor]] = [] if not self.coupled else self._own_part(u, h)
        F: list[list[Tensor]] = [[] for _ in weights]
        for leaf in result:
            found = vjp([leaf], [torch.ones_like(leaf)], [*points, *weights], keep=True)
            if not self.coupled:
                J.append(found[: len(h)])
            for own, gradient in zip(F, found[len(h) :], strict=True):
                own.append(gradient.reshape(*h[0].shape[:-1], *gradient.shape))
        return Local([leaf.detach() for leaf in result], J, F)

    def _own_part(self, u: Any, h: list[Tensor]) -> list[list[Tensor]]:
        """The diagonal of ∂result/∂h, from a batch with a row for each unit in which it alone is free."""
        n, shape = self.units, h[0].shape
        alone = torch.eye(n, dtype=torch.bool, device=h[0].device)
        leaves, spec = trees.flatten(u)
        rows = trees.unflatten(
            [
                leaf.reshape(*leaf.shape[len(shape) - 1 :]).expand(n, *leaf.shape[len(shape) - 1 :])
                for leaf in leaves
            ],
            spec,
        )
        with torch.enable_grad():
            own = [leaf.detach().reshape(n).requires_grad_() for leaf in h]
            wide = [torch.where(alone, free, leaf.detach().reshape(n)) for free, leaf in zip(own, h, strict=True)]
            result = self(rows, wide)
        parts = [vjp([leaf], [alone.to(leaf.dtype)], own, keep=True) for leaf in result]
        return [[part.reshape(shape) for part in row] for row in parts]


def layers_of(
    network: Network, theta: list[Tensor], names: list[str], h: list[Tensor], spec: Any, *, coupled: bool
) -> list[ColumnLayer]:
    """The layers of the state net, for a state of this structure.

    Raises:
        ConfigError: If it does not say how many units it has, or a weight cannot belong to units.
    """
    net: Any = network.state
    if isinstance(net, nn.Module) and any(isinstance(part, _BATCH_NORMS) for part in net.modules()):
        raise ConfigError(
            "the state net normalises over batches, so that its rows see each other: hl.Sensitivity() cannot "
            "follow it. Use hl.Echo(), or a layer norm within each unit"
        )
    # Each cell with the function from its state to what the next one reads.
    cells = list(net.layers()) if hasattr(net, "layers") else [(net, _nothing)]
    states = trees.unflatten(h, spec) if hasattr(net, "layers") else [trees.unflatten(h, spec)]
    found, start, known = [], 0, {id(weight): index for index, weight in enumerate(theta)}
    for (cell, show), state in zip(cells, states, strict=True):
        leaves, own = trees.flatten(state)
        units = _units(cell, leaves)
        named = [] if not isinstance(cell, nn.Module) else list(cell.named_parameters())
        mine = [(name, known[id(weight)]) for name, weight in named if id(weight) in known]
        for _, index in mine:
            shape = theta[index].shape
            if not shape or shape[0] % units:
                raise ConfigError(
                    f"the parameter {names[index]!r} of shape {tuple(shape)} cannot belong to {units} units one "
                    "by one: hl.Sensitivity() takes weights whose first axis is the units, or gates of them. "
                    "Freeze it with requires_grad_(False), or use hl.Echo()"
                )
        slots = slice(start, start + len(leaves))
        starts = [
            (index, slot - start)
            for index, name in enumerate(names)
            for slot in range(slots.start, slots.stop)
            if name == f"h0_{slot}"
        ]
        indices = [index for _, index in mine]
        found.append(
            ColumnLayer(
                network, cell, units, slots, own, [name for name, _ in mine], indices, starts, show, coupled
            )
        )
        start += len(leaves)
    _require_all_placed(found, net, known, names)
    return found


def _nothing(state: Any) -> Any:
    raise AssertionError("no layer reads the topmost one")


def _units(cell: Any, leaves: list[Tensor]) -> int:
    units = getattr(cell, "units", None)
    if units is None and isinstance(cell, nn.RNNCellBase):
        units = cell.hidden_size
    if not isinstance(units, int) or units < 1:
        raise ConfigError(
            f"{type(cell).__name__} does not say how many units its state has, as hl.Sensitivity() needs: give it "
            "an attribute `units`, or use a cell of hl.cells, such as hl.cells.ColumnarGRU"
        )
    shapes = {leaf.shape for leaf in leaves}
    if len(shapes) != 1 or not leaves[0].dim() or leaves[0].shape[-1] != units:
        raise ConfigError(
            f"{type(cell).__name__} has units={units}, and a state of {trees.describe(leaves)}: every tensor of "
            "the state must have the shape (batch…, units)"
        )
    return units


def _require_all_placed(layers: Iterable[ColumnLayer], net: Any, known: dict[int, int], names: list[str]) -> None:
    placed = {index for layer in layers for index in layer.weights}
    own = net.parameters() if isinstance(net, nn.Module) else ()
    for weight in own:
        index = known.get(id(weight))
        if index is not None and index not in placed:
            raise ConfigError(f"the parameter {names[index]!r} belongs to no layer of {type(net).__name__}")


def _require_like(result: list[Tensor], h: list[Tensor]) -> None:
    if [leaf.shape for leaf in result] != [leaf.shape for leaf in h]:
        raise SampleError(
            f"the state of {trees.describe(h)} would become one of {trees.describe(result)}: check h0 and the "
            "batch size; if that changed in mid-sequence, end the sequence with boundary=True"
        )


def _lane_of(u: Any, lane: int, lanes: int) -> Any:
    leaves, spec = trees.flatten(u)
    if any(not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != lanes for leaf in leaves):
        raise SampleError(f"u={trees.describe(u)} has not the {lanes} rows of the state")
    return trees.unflatten([leaf[lane : lane + 1] for leaf in leaves], spec)


def _rows(lanes: list[Local]) -> list[list[list[Tensor]]]:
    """The parts of all lanes, such that what is to be joined stands side by side."""
    parts = [[lane.result, *lane.J, *lane.F] for lane in lanes]
    return [list(part) for part in zip(*parts, strict=True)]
