"""What is learned locally: cells, their weights laid out in slots, and the costs that read several."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hamlearn._base.scale import Scale, add_
from hamlearn._base.slots import Slots
from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.network import as_time
from hamlearn.rules.derivatives import Loss, instantaneous_loss, vjp
from hamlearn.rules.drive import OmegaUpdate
from hamlearn.rules.local.costates import Increment, Omega, Outer, add_at, dense
from hamlearn.rules.local.dense import Dense, runs
from hamlearn.rules.local.losses import without_graph
from hamlearn.rules.local.nodes import Cell
from hamlearn.rules.local.wiring import Wiring
from hamlearn.rules.running_cost import RunningCost, one_number
from hamlearn.rules.velocity import Value, Velocity

OrderName = Literal["parallel", "sequential"]
Losses = Loss | Mapping[str, Loss]
ANY = 1 << 30
"""Layers that one stack may hold, if it may hold any number."""


class Costs(NamedTuple):
    """The running cost of one tick: R, ∂R/∂h and ∂R/∂ḣ of each cell."""

    R: Tensor
    by_h: list[Tensor]
    by_rate: list[Tensor]


class LocalSystem:
    """A wiring with its learnable weights laid out in slots: one per weight, or one per stack of weights.

    Args:
        wiring: The nodes.
        loss: L(y, target), or one for each output.
        hyper: τ, η, β, φ and s.
        order: Of the updates.
        longest: How many plain layers one stack may hold; 0: all nodes are differentiated by autograd.
        running_cost: R(u, h, dh, y, theta, t); h and dh are mappings by node.

    Attributes:
        cells: Nodes and stacks, in the order in which a signal passes.
        theta: The weights by slot.
        slot_names: Names of the weights in each slot.
        velocity: β by slot.
        slots: Where the module holds its weights and buffers.
    """

    drive = OmegaUpdate()

    def __init__(
        self,
        wiring: Wiring,
        loss: Losses,
        hyper: Hyper,
        order: OrderName,
        longest: int = ANY,
        running_cost: RunningCost | None = None,
    ) -> None:
        found = [(n, w) for n, w in wiring.named_parameters() if w.requires_grad]
        if not found:
            raise ConfigError("no parameter requires grad: there is nothing to learn")
        check_tensors([*wiring.named_parameters(), *wiring.named_buffers()])
        self.wiring, self.loss, self.hyper, self.order = wiring, loss, hyper, order
        self.running_cost = running_cost
        self.slots = Slots(wiring.root)
        self.names = [n for n, _ in found]
        self.parameters: list[Tensor] = [w for _, w in found]
        self.theta: list[Tensor] = []
        self.slot_names: list[tuple[str, ...]] = []
        self.cells: list[Cell | Dense] = []
        self._make_cells(longest)
        self._set_losses()

    def _make_cells(self, longest: int) -> None:
        """Cells in order, each weight in the slot of the first cell that uses it."""
        readable = [*(node.name for node in self.wiring.nodes), *self.wiring.borders]
        name_of = dict(zip(self.parameters, self.names, strict=True))
        given = Velocity(self.hyper.beta, self.names, self.parameters).resolved
        beta_of = dict(zip(self.parameters, given, strict=True))
        place: dict[Tensor, int] = {}
        betas: list[Value] = []

        def slots_of(kinds: Sequence[Sequence[Tensor]]) -> list[int]:
            for kind in kinds:
                if kind[0] not in place:
                    place[kind[0]] = len(betas)
                    self.slot_names.append(tuple(name_of[w] for w in kind))
                    betas.append(beta_of[kind[0]])
            return [place[kind[0]] for kind in kinds]

        for run, plain in runs(self.wiring, beta_of, longest):
            weights: list[list[Tensor]] = [
                [w for w in node.module.parameters() if w.requires_grad] for node in run
            ]
            slots = slots_of(list(zip(*weights, strict=True)))
            cell = Dense(run, slots, readable) if plain else Cell(run[0], slots, weights[0], readable)
            self.theta += [w for slot, w in zip(slots, cell.theta, strict=True) if slot >= len(self.theta)]
            self.cells.append(cell)
        unused = set(self.names).difference(*self.slot_names)
        if unused:
            raise ConfigError(f"parameters {sorted(unused)} belong to no node: freeze them, or move them to one")
        numbered = {f"slot {i}": beta for i, beta in enumerate(betas)}
        self.velocity = Velocity(numbered, list(numbered), self.theta)

    def _set_losses(self) -> None:
        outputs, loss = self.wiring.outputs, self.loss
        if isinstance(loss, Mapping) and set(loss) != set(outputs):
            raise ConfigError(f"losses for {sorted(loss)}, but the outputs are {sorted(outputs)}")
        self.loss_of = dict(loss) if isinstance(loss, Mapping) else dict.fromkeys(outputs, loss)
        self._only = outputs[0] if len(outputs) == 1 and self.wiring.read is None else None
        self.without_graph = without_graph(self.loss_of[self._only]) if self._only is not None else None
        self._device = self.theta[0].device.type
        # What a loss or a running cost reads of the weights: slot, place in a stack, and the tensor that it reads.
        place = {name: (slot, i) for slot, names in enumerate(self.slot_names) for i, name in enumerate(names)}
        self._readable = [
            (slot, i if len(self.slot_names[slot]) > 1 else None, weight)
            for name, weight in zip(self.names, self.parameters, strict=True)
            for slot, i in [place[name]]
        ]
        self._named: Mapping[str, Tensor] = dict(zip(self.names, self.parameters, strict=True))

    @property
    def network(self) -> nn.Module:
        """The module that holds the weights, as the compiled engine asks for it."""
        return self.wiring.root

    @property
    def stacks(self) -> list[Dense]:
        """The cells of plain layers."""
        return [cell for cell in self.cells if isinstance(cell, Dense)]

    def over(self, theta: list[Tensor]) -> LocalSystem:
        """The same cells with other weights, which the modules hold meanwhile."""
        twin = copy.copy(self)
        twin.theta = theta
        twin.cells = [cell.over([theta[slot] for slot in cell.slots]) for cell in self.cells]
        twin._readable = [(slot, None, weight) for slot, weight in enumerate(theta)]
        twin._named = self.held(theta) if self.running_cost is not None else {}
        return twin

    def held(self, theta: list[Tensor]) -> dict[str, Tensor]:
        """What modules hold by name if the weights are these, to which gradients pass."""
        with torch.enable_grad():
            return self.by_name(list(theta))

    def require_same(self) -> None:
        """Raise if the module has other weights than those that the learner was made of."""
        self.slots.require_same()
        for cell in self.stacks:
            cell.check_weights()

    def move(self, theta: list[Tensor], omega: list[Omega], t: float, tau: float) -> None:
        """θ ← θ − τβ⊙ω in place; costates that are kept as factors are not written out."""
        if not any(isinstance(o, Outer) for o in omega):
            self.velocity.move(theta, omega, t, tau)  # type: ignore[arg-type]
            return
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for w, o, beta in zip(theta, omega, self.velocity.values(t), strict=True):
            scale = -(tau * beta)
            if isinstance(beta, Tensor) and beta.dim():
                o, scale = dense(o) * beta.to(w.device), -tau
            if isinstance(o, Outer) and not isinstance(scale, Tensor):
                if scale:
                    o.add_to_(w, scale)
                continue
            weights, costates = groups.setdefault(scale, ([], []))
            weights.append(w)
            costates.append(dense(o))
        for scale, (weights, costates) in groups.items():
            if isinstance(scale, Tensor) or scale:
                add_(weights, costates, scale)

    def by_name(self, slots: list[Any]) -> dict[str, Tensor]:
        """Slots as the module names them, in its order; costates that are kept as factors are written out."""
        found: dict[str, Tensor] = {}
        for names, tensor in zip(self.slot_names, map(dense, slots), strict=True):
            found |= {names[0]: tensor} if len(names) == 1 else dict(zip(names, tensor, strict=True))
        return {name: found[name] for name in self.names}

    def forms(self) -> list[Tensor]:
        """Shape and dtype of the costate of each slot, without any memory."""
        return [torch.empty_like(w, device="meta", requires_grad=False) for w in self.theta]

    def read(self, h: dict[str, Tensor]) -> Any:
        """Y from the states of the output nodes; `None` if there are none."""
        if not self.wiring.outputs:
            return None
        if self._only is not None:
            return h[self._only]
        read = self.wiring.read or (lambda x: x)
        y = {name: read(h[name]) for name in self.wiring.outputs}
        return y if len(y) > 1 else y[self.wiring.outputs[0]]

    def losses(
        self, h: dict[str, Tensor], target: Any, gain: Scale, grads: list[Increment | None]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """L and ∂L/∂h of the output nodes in `h`; several outputs each have a loss of their own.

        Args:
            h: States of output nodes.
            target: Of the sample.
            gain: τφ, the scale of the loss.
            grads: Increments of ω by slot: gain·∂L/∂θ is added, for weights that the loss reads itself.
        """
        if self.without_graph is not None and self._only in h and not torch.is_autocast_enabled(self._device):
            pair = self.without_graph(h[self._only], target)
            if pair is not None:
                return pair[0], {self._only: pair[1]}
        targets = self.targets(target)
        found = [name for name in self.wiring.outputs if name in targets and name in h]
        if not found:
            return None, {}
        leaves = [h[name].detach().requires_grad_() for name in found]
        with torch.enable_grad():
            L = self.compare(dict(zip(found, leaves, strict=True)), targets)
        more = _reads_others(L, leaves)
        dL = self._differentiate(L, leaves, gain, grads) if more else vjp([L], [None], leaves)
        return L.detach(), dict(zip(found, dL, strict=True))

    def costs(
        self, u: Any, h: list[Tensor], rates: list[Tensor], t: Any, stride: Scale, grads: list[Increment | None]
    ) -> Costs | None:
        """The running cost of a tick; `None` if there is none.

        Args:
            u: The input.
            h: State of each cell.
            rates: ḣ of each cell.
            t: Time.
            stride: Time step of costates.
            grads: Increments of ω by slot: stride·∂R/∂θ is added.
        """
        if self.running_cost is None:
            return None
        leaves = [x.detach().requires_grad_() for x in (*h, *rates)]
        states, slopes = leaves[: len(h)], leaves[len(h) :]
        with torch.enable_grad():
            by_node = self.named(states)
            y = self.read(by_node)
            R = one_number(self.running_cost(u, by_node, self.named(slopes), y, self._named, as_time(t)))
        found = self._differentiate(R, leaves, stride, grads)
        return Costs(R.detach(), found[: len(h)], found[len(h) :])

    def named(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """One tensor per node by its name, from one per cell."""
        pairs = zip(self.cells, values, strict=bool(values))
        return {name: x for cell, value in pairs for name, x in zip(cell.names, cell.split(value), strict=True)}

    def _differentiate(
        self, L: Tensor, leaves: list[Tensor], gain: Scale, grads: list[Increment | None]
    ) -> list[Tensor]:
        """∂L/∂leaves; gain·∂L/∂θ is added for the weights that L reads itself, such as those of a penalty."""
        weights = [weight for _, _, weight in self._readable]
        derivatives: Sequence[Tensor | None] = [None] * (len(leaves) + len(weights))
        if L.requires_grad:
            derivatives = torch.autograd.grad(L, [*leaves, *weights], allow_unused=True)
        dL, reads = derivatives[: len(leaves)], derivatives[len(leaves) :]
        for (slot, layer, _), read in zip(self._readable, reads, strict=True):
            if read is None:
                continue
            scaled = gain * (read.to_dense() if read.is_sparse else read)
            if layer is not None:
                whole = torch.zeros_like(self.theta[slot], dtype=scaled.dtype, requires_grad=False)
                whole[layer], scaled = scaled, whole
            add_at(grads, [slot], [scaled])
        return [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, dL, strict=True)]

    def compare(self, h: dict[str, Tensor], targets: dict[str, Any]) -> Tensor:
        """The sum of the losses of the output nodes in `h`."""
        read = self.wiring.read
        losses = [
            instantaneous_loss(self.loss_of[name], x if read is None else read(x), targets[name])
            for name, x in h.items()
        ]
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])

    def targets(self, target: Any) -> dict[str, Any]:
        """Targets by output node."""
        outputs = self.wiring.outputs
        if target is None:
            return {}
        if len(outputs) == 1 and (
            isinstance(target, Tensor) or not (isinstance(target, Mapping) and set(target) == set(outputs))
        ):
            return {outputs[0]: target}
        if not isinstance(target, Mapping) or not set(target) <= set(outputs):
            raise SampleError(
                f"target must be a mapping from some of the outputs {list(outputs)} to their targets"
            )
        return {name: value for name, value in target.items() if value is not None}


def check_tensors(named: list[tuple[str, Tensor]]) -> None:
    """Raise if a weight or buffer cannot be learned with."""
    for name, x in named:
        if is_lazy(x):
            raise ConfigError(f"{name} has no shape yet: run the module once, and make the learner afterwards")
        if x.is_inference():
            raise ConfigError(
                f"{name} was made in inference mode, where nothing is learned: make it outside of it"
            )


def _reads_others(L: Tensor, leaves: list[Tensor]) -> bool:
    """Whether a loss depends on tensors that require grad besides these, such as weights in a penalty."""
    waiting, seen = [L.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and not any(variable is leaf for leaf in leaves):
            return True
        waiting += [before for before, _ in node.next_functions]
    return False
