"""A chain of midpoint steps: what is evaluated at each step, with which weights, under which conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.torch_private import tensor_hooks
from hamlearn.errors import ConfigError, SampleError
from hamlearn.reversible._drive import StepInputs
from hamlearn.reversible._errors import RebuildError
from hamlearn.reversible._grid import Watch
from hamlearn.reversible._replay import Replay, checksum
from hamlearn.reversible._rule import Rule, require_rate

CHANGED = (
    "The cause is an operation that is not deterministic, a module that changes itself when called, or something "
    "that was changed since the forward run: an attribute, a buffer, a weight, u. Make the backward run first; "
    "memory='stored' works in any case."
)

Field = Callable[[Any, Tensor], Tensor]
"""f(u, h): the rate of change of h. An `nn.Module`, so that its weights are known."""


class Weights:
    """θ of several modules, each tensor once, and which of them belong to which module."""

    def __init__(self, modules: Iterable[object]) -> None:
        self.tensors: list[Tensor] = []
        self._of: dict[int, tuple[list[Tensor], list[int]]] = {}
        place_of: dict[int, int] = {}
        for module in modules:
            if id(module) in self._of:
                continue
            found = module.parameters() if isinstance(module, nn.Module) else ()
            theta: list[Tensor] = [p for p in found if p.requires_grad]
            places = []
            for p in theta:
                place = place_of.setdefault(id(p), len(self.tensors))
                if place == len(self.tensors):
                    self.tensors.append(p)
                places.append(place)
            self._of[id(module)] = theta, places

    def require_same(self, module: object) -> None:
        """Raise `ConfigError` if a module has other weights than in the forward run: those get no gradient."""
        theta = self._of[id(module)][0]
        found = module.parameters() if isinstance(module, nn.Module) else ()
        if [id(p) for p in found if p.requires_grad] != [id(p) for p in theta]:
            raise ConfigError(
                f"{type(module).__name__} has other weights, or others that are frozen, than in the forward run: "
                "a tensor that it used then is not among its parameters() that require a gradient any more. "
                "Exchange and freeze weights after the backward run, or use memory='stored'."
            )

    def require_no_hooks(self) -> None:
        """Raise `ConfigError` if a hook changes the gradient of a weight: each step of the echo would call it."""
        for p in self.tensors:
            if tensor_hooks(p):
                raise ConfigError(
                    f"a weight of shape {tuple(p.shape)} has a hook on its gradient, which would be called at "
                    "every step and not once: use register_post_accumulate_grad_hook, or memory='stored' or "
                    "'checkpoint'."
                )

    def of(self, module: object) -> tuple[list[Tensor], list[int]]:
        """The weights of `module` that require a gradient, and their places in `tensors`."""
        return self._of[id(module)]


class Chain:
    """N midpoint steps from h_0, one call of a module.

    Args:
        rule: one step of the integration.
        fields: one field for all steps, or one per step.
        readout: y_k = readout(u_k, h_{k+1}), or None.
        steps: N.
        drive: u.
        replay: the conditions of this call.
        watch: sees that the states stay on the grid; None without a grid.
        trusted: fields known to depend on no weights but their own, by id; the echo adds to it.
    """

    def __init__(
        self,
        rule: Rule,
        fields: Sequence[Field],
        readout: Field | None,
        steps: int,
        drive: StepInputs,
        replay: Replay,
        watch: Watch | None,
        trusted: dict[int, object],
    ) -> None:
        self.rule, self.fields, self.readout, self.steps = rule, fields, readout, steps
        self.drive, self.replay, self.watch, self.trusted = drive, replay, watch, trusted
        self.weights = Weights([*fields, readout])
        self.last: list[Tensor] = []

    def field(self, k: int) -> Field:
        """The field of step k."""
        return self.fields[k % len(self.fields)]

    def rate(self, k: int, u: Any, h: Tensor) -> Tensor:
        """v_k = f_k(u_k, h_k)."""
        v = self.replay.evaluate(2 * k, self.field(k), u, h)
        require_rate(k, v)
        return v

    def output(self, k: int, u: Any, h_next: Tensor) -> Tensor:
        """y_k = readout(u_k, h_{k+1})."""
        assert self.readout is not None
        y = self.replay.evaluate(2 * k + 1, self.readout, u, h_next)
        if not isinstance(y, Tensor):
            raise SampleError(
                f"the readout of step {k} returned a value of type {type(y).__name__}: outputs are stacked, so "
                "return one tensor."
            )
        return y

    def leaf(self, h: Tensor) -> Tensor:
        """The state as the field is given it, at the root of a graph of one step."""
        return h.to(self.rule.shown).detach().requires_grad_()

    def start(self, h0: Tensor) -> Tensor:
        """h_0 on the grid, checked."""
        h = self.rule.start(h0)
        self._note(0, h)
        return h

    def taped(self, h_prev: Tensor, h: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Steps `first` to `last` - 1 recorded by autograd: the last two states, and the outputs."""
        ys = []
        for k in range(first, last):
            u, shown = self.drive.at(k), h.to(self.rule.shown)
            h_prev, h = h, h_prev + self.rule.increment(k, h, self.rate(k, u, shown))
            self._note(k + 1, h)
            if self.readout is not None:
                ys.append(self.output(k, u, h.to(self.rule.shown)))
        if self.watch is not None:
            self.watch.check()
        return h_prev, h, ys

    def untaped(self, h0: Tensor, *, remember: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """All steps, keeping only the last two states, and the outputs; `remember`: for a backward run.

        Each evaluation builds the graph of its own step and drops it: the rebuild needs that graph, and
        kernels may return other bits when no graph is asked for (fused inference paths, compiled fields).
        """
        h_prev = h = self.start(h0.detach())
        y: Tensor | None = None
        drive = self.drive.detached()
        for k in range(self.steps):
            u, _ = drive.at(k)
            v = self.rate(k, u, self.leaf(h)).detach()
            last = remember and k == self.steps - 1
            if last:
                self.last = [checksum(v)]
            h_prev, h = h, self.rule.increment(k, h, v).add_(h_prev)
            self._note(k + 1, h)
            if self.readout is not None:
                y_k = self.output(k, u, self.leaf(h)).detach()
                if last:
                    self.last.append(checksum(y_k))
                y = y_k.new_empty(self.steps, *y_k.shape) if y is None else y
                if y_k.shape != y.shape[1:]:
                    raise SampleError(
                        f"the readout of step {k} returned shape {tuple(y_k.shape)}, those before it "
                        f"{tuple(y.shape[1:])}: outputs are stacked, so give all of them one shape."
                    )
                y[k] = y_k
        if self.watch is not None:
            self.watch.check()
        return h_prev, h, y

    def require_last(self, what: int, value: Tensor) -> None:
        """Require that a rate (`what` is 0) or output (1) of the last step is what it was in the forward run.

        The state that this step starts from was kept, so that whatever differs has changed since.
        """
        if not torch.equal(checksum(value), self.last[what]):
            raise RebuildError(
                f"{type(self.readout if what else self.field(self.steps - 1)).__name__} gave other bits when it "
                f"was evaluated again. {CHANGED}"
            )

    def _note(self, k: int, h: Tensor) -> None:
        if self.watch is not None:
            self.watch.see(k, h)
