"""Credit by sensitivities: E = ∂h/∂θh goes forward with the state, and ω gathers z·E."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import Scale, add_some_, plus, scaled
from hamlearn.credit import Sensitivity
from hamlearn.errors import ConfigError
from hamlearn.rules.columns import ColumnLayer, Local, layers_of
from hamlearn.rules.derivatives import instantaneous_loss, partials, vjp
from hamlearn.rules.independence import require_independent
from hamlearn.rules.running_cost import added, running_cost
from hamlearn.rules.system import Instant, Order, Outcome, System
from hamlearn.rules.transition import rate
from hamlearn.sample import reported
from hamlearn.state.carry import Carry


class Sensitive(Order):
    """Sequential or parallel order, with the sensitivity of the state to its weights in place of a costate's past.

    E⁺ = κ (∂h⁺/∂h) E + ∂h⁺/∂θh. Sequential: z⁺ = τφ ∂L/∂h⁺, ωh⁺ = (1 − τη) ωh + z⁺·E⁺, and ωy as ever. Parallel:
    y and L are read at h, ω̇h = φ ∂L/∂h·E − η ωh with E of time t, and θ follows the old ω. Where cells are
    stacked, each layer has its own E, and z reaches the layers below through the present instant alone.
    """

    def __init__(self, system: System, credit: Sensitivity, order: str) -> None:
        super().__init__(system, credit)
        self.parallel = order == "parallel"
        self.reads_next = not self.parallel
        self._layers: list[ColumnLayer] | None = None
        self._spec: trees.Spec = None
        self._verified = not credit.strict

    def first(self, h: list[Tensor], spec: trees.Spec) -> list[Tensor]:
        """E where a sequence begins: 0, and for a learned h0 the identity."""
        theta, E = self.system.theta, []
        for layer in self._found(h, spec):
            state = h[layer.slots]
            shape = state[0].shape[:-1]
            E += [state[0].new_zeros(*shape, *theta[index].shape) for index in layer.weights for _ in state]
            for _, slot in layer.starts:
                E += [torch.full_like(leaf, float(own == slot)) for own, leaf in enumerate(state)]
        return E

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """New h, E, z and ω."""
        system, rates, sample = self.system, now.rates, now.sample
        h_next, results, E = self._forward(carry, now)
        read, along = (carry.h, carry.E) if self.parallel else (h_next, E)
        costs = system.running_cost is not None
        with torch.set_grad_enabled(sample.target is not None or costs):
            points = [leaf.detach().requires_grad_(sample.target is not None or costs) for leaf in read]
            y = system.network.output_net(sample.u, trees.unflatten(points, carry.spec))
            L = None if sample.target is None else instantaneous_loss(system.loss, y, sample.target, graph=True)
            dh = rate(system.network, carry.h, results, rates.tau) if costs else []
            dh = [leaf.requires_grad_() for leaf in dh]
            R = running_cost(system, sample.u, points, dh, carry.spec, y, system.theta, rates.t)
        decay, gain, drive = system.decay(rates), rates.stride * rates.phi, system.drive
        omega = drive.before(carry.omega, decay)
        z = [torch.zeros_like(leaf) for leaf in read]
        if L is not None or R is not None:
            cost, weight = (L, gain) if R is None else (R if L is None else rates.phi * L + R, rates.stride)
            # By all weights, also those of the cells: the loss or the output net may read them directly.
            assert cost is not None
            by_state, dtheta = self._derivatives(cost, y, [*points, *dh])
            n = len(points)
            z = self._downward(carry, h_next, scaled(by_state[:n], weight), rates.tau)
            with torch.no_grad():
                self._gather(carry, omega, z, along)
            if dh:
                # ḣ = (h⁺ − h)/τ, whose sensitivity is (E⁺ − κE)/τ.
                p = self._downward(carry, h_next, scaled(by_state[n:], rates.stride / rates.tau), rates.tau)
                with torch.no_grad():
                    self._gather(carry, omega, p, E)
                    self._gather(carry, omega, scaled(p, -self.credit.keep), carry.E)
            add_some_(omega, dtheta, weight)
        y, learned = reported(y), L is not None
        loss = None if L is None else L.detach()
        omega, v = drive.gather(carry.omega, carry.v, omega, system.theta, decay, gain, learned=learned)
        coupled = drive.coupled(None, system.theta, rates.phi) if learned else None
        outcome = Outcome(h_next, z, omega, y, loss, added(coupled, R), carry.spec, learned=learned, v=v, E=E)
        if self.parallel:
            outcome.dtheta = system.velocity.rates(carry.omega, now.t, system.theta, carry.v, now.updates)
        return outcome

    def _forward(self, carry: Carry, now: Instant) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """h⁺, what the state net returned, and E⁺."""
        system, layers, u, before = self.system, self._found(carry.h, carry.spec), now.sample.u, carry.E
        if not self._verified:
            require_independent(system, layers, u, carry.h)
            self._verified = True
        h_next: list[Tensor] = []
        results: list[Tensor] = []
        E: list[Tensor] = []
        for layer in layers:
            found = layer.local(u, carry.h[layer.slots], system.theta)
            h, moved = self._moved(layer, found, carry.h[layer.slots], before[: _size(layer)], now.rates.tau)
            before = before[_size(layer) :]
            h_next, results, E = h_next + h, results + found.result, E + moved
            u = layer.shown(h) if layer is not layers[-1] else u
        return h_next, results, E

    def _derivatives(self, cost: Tensor, y: Any, points: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """∂cost by what it is read at, and by the weights directly."""
        n, system = len(points), self.system
        if self.credit.feedback is None:
            found = partials([cost], [None], [*points, *system.theta])
        else:
            *found, dy = partials([cost], [None], [*points, *system.theta, y])
            found[:n] = self._fed_back(dy, y, points)
        by_state = [torch.zeros_like(x) if g is None else g for x, g in zip(points, found, strict=False)]
        return by_state, found[n:]

    def _fed_back(self, dy: Tensor | None, y: Any, points: list[Tensor]) -> list[Tensor]:
        """∂L/∂y through fixed random weights, in the place of ∂L/∂h, for each part of the state."""
        if not isinstance(y, Tensor) or any(y.shape[:-1] != leaf.shape[:-1] for leaf in points):
            raise ConfigError(
                f"the output is {trees.describe(y)}, and random feedback leads from outputs (batch…, outputs) to "
                "units (batch…, units): use feedback=None"
            )
        draw = np.random.default_rng(self.credit.feedback)
        back = []
        for leaf in points:
            B = draw.standard_normal((y.shape[-1], leaf.shape[-1])) / y.shape[-1] ** 0.5
            back.append(torch.zeros_like(leaf) if dy is None else dy @ torch.from_numpy(B).to(dy))
        return back

    def _found(self, h: list[Tensor], spec: trees.Spec) -> list[ColumnLayer]:
        """The layers, found and to be verified when the first state is met."""
        system = self.system
        if self._layers is None or self._spec != spec:
            layers = layers_of(system.network, system.theta, system.names, h, spec, coupled=not self.credit.strict)
            if self.parallel and len(layers) > 1:
                raise ConfigError(
                    "in parallel order no layer of a stack sees the others at the same instant: use "
                    "order='sequential' for stacks with hl.Sensitivity()"
                )
            self._layers, self._spec, self._verified = layers, spec, not self.credit.strict
        return self._layers

    def _moved(
        self, layer: ColumnLayer, found: Local, h: list[Tensor], E: list[Tensor], tau: Scale
    ) -> tuple[list[Tensor], list[Tensor]]:
        """h⁺ and E⁺ of one layer."""
        k, keep, flows = len(h), self.credit.keep, self.system.network.transition == "rate"
        with torch.no_grad():
            J, result = found.J, found.result
            if flows:
                result = plus(h, result, tau)
                J = [[tau * J[a][c] + (1.0 if a == c else 0.0) for c in range(k)] for a in range(k)]
            if self.credit.leak is not None:
                leak = self.credit.leak
                J = [[torch.full_like(J[a][c], leak if a == c else 0.0) for c in range(k)] for a in range(k)]
            if keep != 1.0:
                J = [[keep * part for part in row] for row in J]
            moved = []
            for number, index in enumerate(layer.weights):
                weight, own = self.system.theta[index], E[number * k : (number + 1) * k]
                for a in range(k):
                    F = found.F[number][a]
                    moved.append(
                        _weighted([layer.tile(J[a][c], weight) for c in range(k)], own, tau * F if flows else F)
                    )
            for number in range(len(layer.weights), len(layer.weights) + len(layer.starts)):
                own = E[number * k : (number + 1) * k]
                moved += [_weighted(J[a], own, None) for a in range(k)]
        return result, moved

    def _downward(self, carry: Carry, h_next: list[Tensor], z: list[Tensor], tau: Scale) -> list[Tensor]:
        """Add to z of each layer what the one above makes of it at this instant."""
        layers, h = self._found(carry.h, carry.spec), carry.h
        z, unit = list(z), tau if self.system.network.transition == "rate" else 1.0
        for under, above in reversed(list(itertools.pairwise(layers))):
            with torch.enable_grad():
                points = [leaf.detach().requires_grad_() for leaf in h_next[under.slots]]
                result = above(under.shown(points), [leaf.detach() for leaf in h[above.slots]])
            shares = vjp(result, scaled(z[above.slots], unit), points)
            z[under.slots] = plus(z[under.slots], shares, 1.0)
        return z

    def _gather(self, carry: Carry, omega: list[Tensor], z: list[Tensor], E: list[Tensor]) -> None:
        """ωh ← ωh + z·E."""
        theta, rest = self.system.theta, iter(E)
        for layer in self._found(carry.h, carry.spec):
            own = z[layer.slots]
            for index in layer.weights:
                weight = theta[index]
                terms = [layer.tile(part, weight) * next(rest) for part in own]
                omega[index] = omega[index] + _total(terms).sum_to_size(weight.shape)
            for index, _ in layer.starts:
                terms = [part * next(rest) for part in own]
                omega[index] = omega[index] + _total(terms).sum_to_size(theta[index].shape)


def _size(layer: ColumnLayer) -> int:
    return (len(layer.weights) + len(layer.starts)) * (layer.slots.stop - layer.slots.start)


def _weighted(by: list[Tensor], tensors: list[Tensor], plus: Tensor | None) -> Tensor:
    terms = [a * b for a, b in zip(by, tensors, strict=True)]
    return _total(terms if plus is None else [plus, *terms])


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
