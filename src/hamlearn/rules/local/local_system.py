"""What is learned locally: cells, and their weights laid out in slots."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hamlearn._base.scale import Scale, add_
from hamlearn._base.slots import Slots
from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.rules.derivatives import Loss, instantaneous_loss, vjp
from hamlearn.rules.drive import Drive
from hamlearn.rules.local.costates import Increment, Omega, Outer, add_at, dense
from hamlearn.rules.local.layers import runs
from hamlearn.rules.local.losses import without_graph
from hamlearn.rules.local.nodes import Cell
from hamlearn.rules.local.stacked import LayerStack
from hamlearn.rules.local.wiring import Node, Wiring
from hamlearn.rules.velocity import Value, Velocity

OrderName = Literal["parallel", "sequential"]
Losses = Loss | Mapping[str, Loss]


class LocalSystem:
    """A wiring with its learnable weights laid out in slots: one per weight, or one per stack of weights.

    Args:
        wiring: The nodes.
        loss: L(y, target), or one for each output.
        hyper: τ, η, β, φ and s.
        order: Of the updates.
        stacked: Whether runs of equal layers become stacks.
        wide: The type to compute in; `None`: that of the weights.

    Attributes:
        cells: Nodes and stacks, in the order in which a signal passes.
        theta: The weights by slot.
        slot_names: Names of the weights in each slot.
        velocity: β by slot.
        slots: Where the module holds its weights and buffers.
    """

    drive = Drive()

    def __init__(
        self,
        wiring: Wiring,
        loss: Losses,
        hyper: Hyper,
        order: OrderName,
        stacked: bool,
        wide: torch.dtype | None = None,
    ) -> None:
        found = [(n, w) for n, w in wiring.named_parameters() if w.requires_grad]
        if not found:
            raise ConfigError("no parameter requires grad: there is nothing to learn")
        check_tensors([*wiring.named_parameters(), *wiring.named_buffers()])
        if wide is not None:
            check_compute_dtype(wide, wiring.named_parameters(), wiring.named_buffers())
        self.wiring, self.loss, self.hyper, self.order, self.wide = wiring, loss, hyper, order, wide
        self.slots = Slots(wiring.root)
        self.names = [n for n, _ in found]
        self.parameters: list[Tensor] = [w for _, w in found]
        self._name_of: dict[Tensor, str] = {w: n for n, w in found}
        given = Velocity(hyper.beta, self.names, self.parameters).resolved
        self._beta_of = dict(zip(self.names, given, strict=True))
        self.theta: list[Tensor] = []
        self.slot_names: list[tuple[str, ...]] = []
        self._betas: list[Value] = []
        self._place: dict[Tensor, int] = {}
        self.cells: list[Cell | LayerStack] = []
        self._make_cells(stacked)
        self._set_velocity()
        self._set_losses()

    def _make_cells(self, stacked: bool) -> None:
        nodes = [*(node.name for node in self.wiring.nodes), *self.wiring.borders]
        beta_of = {w: self._beta_of[n] for n, w in zip(self.names, self.parameters, strict=True)}
        for run in runs(self.wiring, beta_of) if stacked else [[node] for node in self.wiring.nodes]:
            self.cells.append(self._cell(run[0], nodes) if len(run) == 1 else self._stack(run, nodes))
        unused = set(self.names).difference(*self.slot_names)
        if unused:
            raise ConfigError(f"parameters {sorted(unused)} belong to no node: freeze them, or move them to one")

    def _set_velocity(self) -> None:
        slots = [f"slot {i}" for i in range(len(self.theta))]
        self.velocity = Velocity(dict(zip(slots, self._betas, strict=True)), slots, self.theta)

    def _set_losses(self) -> None:
        outputs, loss = self.wiring.outputs, self.loss
        if isinstance(loss, Mapping) and set(loss) != set(outputs):
            raise ConfigError(f"losses for {sorted(loss)}, but the outputs are {sorted(outputs)}")
        self.loss_of = dict(loss) if isinstance(loss, Mapping) else dict.fromkeys(outputs, loss)
        self._only = outputs[0] if len(outputs) == 1 and self.wiring.read is None else None
        self.without_graph = without_graph(self.loss_of[self._only]) if self._only is not None else None
        self._device = self.theta[0].device.type
        # Where a loss may read a weight: slot, place in a stack, and the tensor that it reads.
        place = {name: (slot, i) for slot, names in enumerate(self.slot_names) for i, name in enumerate(names)}
        self._readable = [
            (slot, i if len(self.slot_names[slot]) > 1 else None, weight)
            for name, weight in zip(self.names, self.parameters, strict=True)
            for slot, i in [place[name]]
        ]

    def _cell(self, node: Node, nodes: list[str]) -> Cell:
        weights: list[Tensor] = [w for w in node.module.parameters() if w.requires_grad]
        for weight in weights:
            if weight not in self._place:
                self._place[weight] = len(self.theta)
                self.theta.append(weight)
                self.slot_names.append((self._name_of[weight],))
                self._betas.append(self._beta_of[self._name_of[weight]])
        return Cell(node, [self._place[w] for w in weights], weights, nodes)

    def _stack(self, run: list[Node], nodes: list[str]) -> LayerStack:
        kinds = list(zip(*(node.module.parameters() for node in run), strict=True))
        stack = LayerStack(run, list(range(len(self.theta), len(self.theta) + len(kinds))), nodes)
        self.theta += stack.theta
        self.slot_names += [tuple(self._name_of[w] for w in kind) for kind in kinds]
        self._betas += [self._beta_of[self._name_of[kind[0]]] for kind in kinds]
        return stack

    @property
    def network(self) -> nn.Module:
        """The module that holds the weights, as the compiled engine asks for it."""
        return self.wiring.root

    def over(self, theta: list[Tensor]) -> LocalSystem:
        """The same cells with other weights, which the modules hold meanwhile."""
        twin = copy.copy(self)
        twin.theta = theta
        twin.cells = [cell.over([theta[slot] for slot in cell.slots]) for cell in self.cells]
        twin._readable = [(slot, None, weight) for slot, weight in enumerate(theta)]
        return twin

    def held(self, theta: list[Tensor]) -> dict[str, Tensor]:
        """What modules hold by name if the weights are these, to which gradients pass."""
        with torch.enable_grad():
            return self.by_name(list(theta))

    @contextmanager
    def widened(self) -> Iterator[LocalSystem]:
        """Within, the modules hold their weights in the type to compute in; gives the system over these.

        A weight that is stored in fewer bits is widened where it is used, which is exact. Where it moves, the new
        value is rounded to its own type, once.
        """
        if self.wide is None:
            yield self
            return
        theta = [weight.detach().to(self.wide).requires_grad_() for weight in self.theta]
        twin, frozen = self.over(theta), {n: w.detach().to(self.wide) for n, w in self.slots.parameters.items()}
        # A loss may hold a weight by itself, as it is stored.
        twin._readable += self._readable
        with self.slots.exchanged(frozen | self.held(theta)):
            yield twin

    def require_same(self) -> None:
        """Raise if the module has other weights than those that the learner was made of."""
        self.slots.require_same()
        for cell in self.cells:
            if isinstance(cell, LayerStack):
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
        return [torch.empty_like(w, dtype=self.wide, device="meta", requires_grad=False) for w in self.theta]

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
        """L, and ∂L/∂h of each output node in `h` that has a target: each node has a loss of its own.

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

    def _differentiate(
        self, L: Tensor, leaves: list[Tensor], gain: Scale, grads: list[Increment | None]
    ) -> list[Tensor]:
        """∂L/∂h; gain·∂L/∂θ is added for the weights that the loss reads itself, such as those of a penalty."""
        weights = [weight for _, _, weight in self._readable]
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


def check_compute_dtype(
    wide: object, parameters: Sequence[tuple[str, Tensor]], buffers: Sequence[tuple[str, Tensor]]
) -> None:
    """Raise unless all weights can be widened to `wide`, and nothing else needs to be."""
    if wide not in (torch.float32, torch.float64):
        raise ConfigError(f"compute_dtype={wide!r} must be torch.float32 or torch.float64, or None")
    assert isinstance(wide, torch.dtype)
    for name, weight in parameters:
        if not weight.is_floating_point() or weight.dtype.itemsize > wide.itemsize:
            raise ConfigError(
                f"{name} is {weight.dtype}, which {wide} cannot hold: choose a wider compute_dtype, or convert "
                "the module"
            )
    for name, buffer in buffers:
        if buffer.is_floating_point() and buffer.dtype is not wide:
            raise ConfigError(
                f"buffer {name} is {buffer.dtype}, and compute_dtype={wide} keeps weights alone in fewer bits: "
                f"convert it, as by module.{name} = module.{name}.to({wide})"
            )


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
