"""What is learned locally: cells, and their weights laid out in slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.orders.local.losses import without_graph
from hamlearn.orders.local.move import Move
from hamlearn.orders.local.narrow import check_compute_dtype
from hamlearn.orders.local.nodes import Cell
from hamlearn.orders.local.outer import Gathered, Outer, dense
from hamlearn.orders.local.proposal import Omega
from hamlearn.orders.local.runs import runs
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.orders.local.wiring import Node, Wiring
from hamlearn.theory.derivatives import Loss, instantaneous_loss, vjp
from hamlearn.theory.velocity import Value, Velocity

OrderName = Literal["parallel", "sequential"]
Losses = Loss | Mapping[str, Loss]


@dataclass
class LocalSystem:
    """A wiring with its learnable weights laid out in slots: one per weight, or one per stack of weights.

    `wide` is the type to compute in, `None` where it is the one of the weights.
    """

    wiring: Wiring
    loss: Losses
    hyper: Hyper
    order: OrderName
    stacked: bool
    wide: torch.dtype | None = None
    cells: list[Cell | LayerStack] = field(init=False)
    theta: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        found = [(n, w) for n, w in self.wiring.named_parameters() if w.requires_grad]
        if not found:
            raise ConfigError("no parameter requires grad: there is nothing to learn")
        weights: list[Tensor] = [w for _, w in found]
        check_tensors([*self.wiring.named_parameters(), *self.wiring.named_buffers()])
        if self.wide is not None:
            check_compute_dtype(self.wide, self.wiring.named_parameters(), self.wiring.named_buffers())
            self.wiring = self.wiring.computing_in(self.wide)
        self.names = dict(enumerate(n for n, _ in found))
        self._name_of: dict[Tensor, str] = {w: n for n, w in found}
        if isinstance(self.loss, Mapping) and set(self.loss) != set(self.wiring.outputs):
            raise ConfigError(f"losses for {sorted(self.loss)}, but the outputs are {sorted(self.wiring.outputs)}")
        given = Velocity(self.hyper.beta, list(self.names.values()), weights).resolved
        self._beta_of = dict(zip(self.names.values(), given, strict=True))
        self.theta = []
        self.slot_names: list[tuple[str, ...]] = []
        self._betas: list[Value] = []
        self._place: dict[Tensor, int] = {}
        nodes = [*(node.name for node in self.wiring.nodes), *self.wiring.borders]
        self.cells = []
        for run in runs(self.wiring) if self.stacked else [[node] for node in self.wiring.nodes]:
            betas = self._stackable(run) if len(run) > 1 else None
            if betas is None:
                self.cells += [self._cell(node, nodes) for node in run]
            else:
                self.cells.append(self._stack(run, betas, nodes))
        unused = set(self.names.values()).difference(*self.slot_names)
        if unused:
            raise ConfigError(f"parameters {sorted(unused)} belong to no node: freeze them or give them to a node")
        slots = [f"slot {i}" for i in range(len(self.theta))]
        beta: Any = dict(zip(slots, self._betas, strict=True))
        self._one_beta = not isinstance(self.hyper.beta, Mapping | Tensor)
        if self._one_beta:
            beta = self.hyper.beta
        outputs = self.wiring.outputs
        self.loss_of = dict(self.loss) if isinstance(self.loss, Mapping) else dict.fromkeys(outputs, self.loss)
        self._only = outputs[0] if len(outputs) == 1 and self.wiring.read is None else None
        self._without_graph = without_graph(self.loss_of[self._only]) if self._only is not None else None
        self.velocity = Velocity(beta, slots, self.theta)
        self._device = self.theta[0].device.type

    def _cell(self, node: Node, nodes: list[str]) -> Cell:
        weights: list[Tensor] = [w for w in node.module.parameters() if w.requires_grad]
        for weight in weights:
            if weight not in self._place:
                self._place[weight] = len(self.theta)
                self.theta.append(weight)
                self.slot_names.append((self._name_of[weight],))
                self._betas.append(self._beta_of[self._name_of[weight]])
        return Cell(node, [self._place[w] for w in weights], weights, nodes)

    def _stack(self, run: list[Node], betas: list[Value], nodes: list[str]) -> LayerStack:
        slots = list(range(len(self.theta), len(self.theta) + len(betas)))
        stack = LayerStack(run, slots, nodes)
        per_layer = [list(node.module.parameters()) for node in run]
        self.theta += stack.theta
        self.slot_names += [tuple(self._name_of[w] for w in kind) for kind in zip(*per_layer, strict=True)]
        self._betas += betas
        return stack

    def _stackable(self, run: list[Node]) -> list[Value] | None:
        """β of each stacked tensor, or `None` where the layers' own cannot be put into one."""
        kinds = zip(*(list(node.module.parameters()) for node in run), strict=True)
        betas: list[Value] = []
        for kind in kinds:
            values = [self._beta_of[self._name_of[w]] for w in kind]
            if all(v is values[0] for v in values) and not (isinstance(values[0], Tensor) and values[0].dim()):
                betas.append(values[0])
            elif all(isinstance(v, float | int) for v in values):
                scale = torch.tensor(values, dtype=self.wide or kind[0].dtype, device=kind[0].device)
                betas.append(scale.view(-1, *(1 for _ in kind[0].shape)))
            else:
                return None
        return betas

    def moves(self, theta: list[Tensor], omega: list[Omega], t: float, tau: float) -> list[Move]:
        """θ ← θ − τβ⊙ω, ready to be made in as few calls as the kinds of β allow.

        Costates that are still to be made in their own memory have to be, before these moves are.
        """
        if not self._one_beta:
            return self._moves_by_beta(theta, omega, t, tau)
        scale, moves, weights, costates = -(tau * self._beta_at(t)), [], list[Tensor](), list[Tensor]()
        for w, o in zip(theta, omega, strict=True):
            if isinstance(o, Gathered):
                weights.append(w)
                costates.append(o.omega)
            elif isinstance(o, Outer):
                moves.append(Move([w], o, scale))
            else:
                weights.append(w)
                costates.append(o)
        if weights:
            moves.append(Move(weights, costates, scale))
        return moves

    def _moves_by_beta(self, theta: list[Tensor], omega: list[Omega], t: float, tau: float) -> list[Move]:
        moves, numbers = [], dict[float, tuple[list[Tensor], list[Tensor]]]()
        for w, given, beta in zip(theta, omega, self.velocity.values(t), strict=True):
            o = given.omega if isinstance(given, Gathered) else given
            if isinstance(beta, Tensor) and beta.dim():
                moves.append(Move([w], [dense(given) * beta.to(w.device)], -tau))
            elif not isinstance(beta, Tensor):
                if isinstance(o, Outer):
                    moves += [Move([w], o, -(tau * beta))] if beta else []
                    continue
                group = numbers.setdefault(beta, ([], []))
                group[0].append(w)
                group[1].append(dense(o))
            else:
                moves.append(Move([w], [dense(o)], -(tau * beta)))
        return moves + [Move(ws, os, -(tau * beta)) for beta, (ws, os) in numbers.items() if beta]

    def largest_beta(self, t: float) -> float:
        """The largest of all β at time t."""
        if self._one_beta:
            return self._beta_at(t)
        values = self.velocity.values(t)
        return max(float(beta.max()) if isinstance(beta, Tensor) else beta for beta in values)

    def _beta_at(self, t: float) -> float:
        beta: Any = self.hyper.beta
        return float(beta(t) if callable(beta) else beta)

    def by_name(self, slots: list[Omega]) -> dict[str, Tensor]:
        """Slots as the module names them, in the module's order."""
        found: dict[str, Tensor] = {}
        for names, tensor in zip(self.slot_names, map(dense, slots), strict=True):
            found |= {names[0]: tensor} if len(names) == 1 else dict(zip(names, tensor, strict=True))
        return {name: found[name] for name in self.names.values()}

    def forms(self) -> list[Tensor]:
        """Shape and dtype of the costate of each slot, without any memory."""
        return [torch.empty_like(w, dtype=self.wide, device="meta", requires_grad=False) for w in self.theta]

    def may_draw(self) -> bool:
        """Whether a tick may draw random numbers: of functions that are not known, anything is to be expected."""
        judged = bool(self.wiring.outputs) and self._without_graph is None
        return judged or any(c.may_draw() for c in self.cells if isinstance(c, Cell))

    def read(self, h: dict[str, Tensor]) -> Any:
        """Y from the states of the output nodes; `None` where there are none."""
        if not self.wiring.outputs:
            return None
        if self._only is not None:
            return h[self._only]
        read = self.wiring.read or (lambda x: x)
        y = {name: read(h[name]) for name in self.wiring.outputs}
        return y if len(y) > 1 else y[self.wiring.outputs[0]]

    def losses(self, h: dict[str, Tensor], target: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
        """L, and ∂L/∂h of each output node in `h` that has a target: each node has a loss of its own."""
        quick = self._without_graph
        if quick is not None and self._only in h and not torch.is_autocast_enabled(self._device):
            pair = quick(h[self._only], target)
            if pair is not None:
                return pair[0], {self._only: pair[1]}
        targets = self.targets(target)
        found = [name for name in self.wiring.outputs if name in targets and name in h]
        if not found:
            return None, {}
        leaves = [h[name].detach().requires_grad_() for name in found]
        with torch.enable_grad():
            L = self.compare(dict(zip(found, leaves, strict=True)), targets)
        return L.detach(), dict(zip(found, vjp([L], [None], leaves), strict=True))

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
    """Raise where a weight or buffer cannot be learned with."""
    for name, x in named:
        if is_lazy(x):
            raise ConfigError(f"{name} has no shape yet: run the module once, and make the learner afterwards")
        if x.is_inference():
            raise ConfigError(
                f"{name} was made in inference mode, where nothing is learned: make it outside of it"
            )
