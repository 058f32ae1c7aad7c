"""Echo: BackPropagation Through Time as costates that follow the stream's tokens in reverse."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.scale import add_, scaled, seed
from hamlearn.credit import Echo
from hamlearn.errors import ConfigError, SampleError
from hamlearn.rates import Rates
from hamlearn.rules.derivatives import instantaneous_loss, vjp
from hamlearn.rules.running_cost import added, running_cost
from hamlearn.rules.system import Instant, Order, Outcome, System
from hamlearn.rules.transition import as_state, end_points, first_state, next_state, rate
from hamlearn.sample import Sample, reported
from hamlearn.state.carry import Carry
from hamlearn.state.tokens import Rerun, Token, token_of, token_tree

_DRIFT = 1e-2
"""How far from h0 a rebuilt first state may be, relative to its size."""


class Echoed(Order):
    """Sequential order over whole sequences: state after state, then the costates along the echo, then θ.

    Where every token echoes and ω dissipates once, the graphs of the tokens are joined, and one differentiation
    of all losses is the whole echo; otherwise each token has its own graph, and the echo is one
    vector-Jacobian product per token. A net is evaluated a second time only where a state is rebuilt, where a
    truncation reaches back beyond the last move of the weights, and after a checkpoint was loaded.
    """

    remembers = True

    def __init__(self, system: System, credit: Echo) -> None:
        super().__init__(system, credit)
        if system.velocity.adaptive is not None and credit.dissipate == "token":
            raise ConfigError(
                "hl.Echo(dissipate='token') lets ω forget within a sequence, whose gradient is one moment for an "
                "adaptive beta: use dissipate='sequence'"
            )
        self.rebuilds = credit.memory == "reversible"
        self.joined = credit.truncate is None and credit.dissipate == "sequence" and not self.rebuilds
        self.tokens: deque[Token] = deque(maxlen=credit.truncate)
        self.since = 0
        self._proposed: tuple[Token | None, int] = None, 0
        self.again = Rerun(system.slots)

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """The next token's state and output; at the end of the sequence also the new ω."""
        due = now.sample.boundary or self.since + 1 == self.credit.every
        # Tokens outlive their step, and the user may use the memory of the sample again.
        sample = _copied(now.sample)
        h = self._state_met(carry, sample, now.fresh)
        before = self.tokens[-1] if self.tokens else None
        token, spec = self._replayable(sample, now.rates, h, before, carry.spec, fresh=now.fresh)
        kept = replace(token, h=[], h_next=[], loss=None, y=None, running=None) if self.rebuilds else token
        self._proposed = kept, self.since
        omega, v, learned = carry.omega, carry.v, False
        if due:
            tokens = [*self.tokens, token][-(self.credit.truncate or 0) :]
            learned = any(token.sample.target is not None for token in tokens)
            decay = self.decay(now.t, now.rates)
            omega, v = self._echo(tokens, carry, spec, decay, now.rates, learned=learned)
        return Outcome(
            [leaf.detach() for leaf in token.h_next],
            carry.z,
            omega,
            # A copy: the user may write to it, and the graphs of the tokens need what it shares memory with.
            trees.copied(token.y),
            None if token.loss is None else token.loss.detach(),
            added(None, token.running),
            spec,
            moves=due,
            learned=learned,
            v=v,
        )

    def accept(self) -> None:
        """Keep the proposed token; after an echo, keep only what a longer truncation reaches back to."""
        token, since = self._proposed
        assert token is not None
        echoed = since + 1 == self.credit.every
        if token.sample.boundary or (echoed and self.credit.truncate is None):
            self.tokens.clear()
        elif not self.tokens or self.tokens[-1] is not token:
            self.tokens.append(token)
        self.since = 0 if token.sample.boundary or echoed else since + 1

    def forget(self) -> None:
        """Drop all tokens."""
        self.tokens.clear()
        self.since = 0

    def stored(self) -> int:
        """How many tokens are kept, each with its state."""
        return len(self.tokens)

    def pending(self) -> int:
        """How many tokens wait for their boundary; none where echoes come at a fixed interval too."""
        return 0 if self.credit.every is not None else len(self.tokens)

    def memory(self) -> dict[str, Any]:
        """Stored tokens: inputs, targets, and the states they met if those are not found by running them."""
        count = len(self.tokens)
        tokens = [
            token_tree(token if self._met(index, token, count, self.since) == "met" else replace(token, h=[]))
            for index, token in enumerate(self.tokens)
        ]
        return {"tokens": tokens, "since": self.since}

    def _met(self, index: int, token: Token, count: int, since: int) -> str:
        """From what token `index` of `count` is run again: `"h0"`, the one `"before"`, or the state it `"met"`."""
        if self.joined and index:
            return "before"
        # From before the last echo, whatever it met: the weights have moved since, and a learned h0 with them.
        return "h0" if token.fresh and index >= count - since else "met"

    def with_memory(self, tree: dict[str, Any], spec: trees.Spec) -> Callable[[], None]:
        """The stored tokens, run again to have their graphs."""
        taken = self._run_stored([token_of(each) for each in tree["tokens"]], tree["since"], spec)

        def put() -> None:
            self.tokens, self.since = taken, tree["since"]

        return put

    def take_back(self, tokens: Sequence[Token], since: int, spec: trees.Spec) -> None:
        """Store tokens that have no graphs, and run them to have them; `since` of them follow the last echo."""
        self.tokens, self.since = self._run_stored(tokens, since, spec), since

    def _run_stored(self, tokens: Sequence[Token], since: int, spec: trees.Spec) -> deque[Token]:
        taken: deque[Token] = deque(maxlen=self.credit.truncate)
        for index, token in enumerate(tokens):
            before = taken[-1] if taken else None
            if not self.rebuilds:
                met = self._met(index, token, len(tokens), since)
                h = self._first_state(token.sample, spec) if met == "h0" else token.h
                h = before.h_next if met == "before" and before is not None else h
                token = self._run_again(token, h, before, spec)
            taken.append(token)
        return taken

    def _state_met(self, carry: Carry, sample: Sample, fresh: bool) -> list[Tensor]:
        if self.joined and self.tokens:
            return self.tokens[-1].h_next
        return self._first_state(sample, carry.spec) if fresh else carry.h

    def _first_state(self, sample: Sample, spec: trees.Spec) -> list[Tensor]:
        """h0, which is part of the graph of the first token where it is learned."""
        # A copy: the weights, a learned h0 among them, move in place while the token may still be stored.
        return [leaf.clone() for leaf in first_state(self.system.network.start(sample.u), spec)]

    def run_token(
        self,
        sample: Sample,
        rates: Rates,
        h: list[Tensor],
        before: Token | None,
        spec: trees.Spec,
        *,
        fresh: bool = False,
    ) -> tuple[Token, trees.Spec]:
        """One token forward, from the state `h` that it meets."""
        network = self.system.network
        with torch.enable_grad():
            if not self.joined:
                h = [leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in h]
            h_next, spec, result = next_state(network, h, spec, sample.u, rates)
            costs = self.system.running_cost is not None
            dh = rate(network, h, result, rates.tau) if costs else []
            leak = before.rates.stride * before.rates.eta_z if self.joined and before is not None else 0.0
            if leak:
                # Adds nothing to h⁺ and −τη_z z to the costate that comes back through it.
                h_next = [b - leak * (a - a.detach()) for a, b in zip(h, h_next, strict=True)]
            h_next = end_points(h_next, apart=costs)
            tree, L = trees.unflatten(h_next, spec), None
            if sample.target is None and not costs:
                with torch.no_grad():
                    y = network.output_net(sample.u, tree)
            else:
                y = network.output_net(sample.u, tree)
            if sample.target is not None:
                L = instantaneous_loss(self.system.loss, y, sample.target, graph=True)
            R = running_cost(self.system, sample.u, h_next, dh, spec, y, self.system.theta, rates.t)
        return Token(sample, rates, h, h_next, L, reported(y), fresh, running=R), spec

    def _replayable(self, *token: Any, fresh: bool) -> tuple[Token, trees.Spec]:
        """The same, with the random numbers and the buffers that the token met, so that it can be run again."""
        random, buffers = self.again.met()
        with self.again.on_copies(buffers):
            found, spec = self.run_token(*token, fresh=fresh)
        found.random, found.buffers = self.again.drawn(random), buffers
        return found, spec

    def _run_again(self, token: Token, h: list[Tensor], before: Token | None, spec: trees.Spec) -> Token:
        with self.again.as_at(token):
            rerun, _ = self._replayable(token.sample, token.rates, h, before, spec, fresh=token.fresh)
        return rerun

    def _reversed(self, tokens: list[Token], spec: trees.Spec) -> Iterator[Token]:
        """The tokens as they echo, each with a graph at the present weights and the state it met."""
        after = tokens[-1].h_next
        for age, token in enumerate(reversed(tokens)):
            # The weights have moved under the graphs of tokens from before the last echo.
            stale = age > self.since
            if not (self.rebuilds or stale):
                yield token
                continue
            met = [leaf.detach() for leaf in token.h]
            if self.rebuilds:
                previous = self.system.network.state.previous  # type: ignore[union-attr]
                with torch.no_grad(), self.again.as_at(token):
                    tree = previous(token.sample.u, trees.unflatten([leaf.detach() for leaf in after], spec))
                met = after = as_state(tree, after, spec)
            if token.fresh and not stale:
                rebuilt, met = met, self._first_state(token.sample, spec)
                if self.rebuilds:
                    _require_way_back(rebuilt, met)
            yield self._run_again(token, met, None, spec)

    def decay(self, t: float, rates: Rates) -> float:
        """What ω is multiplied by before the echo: 1 − τη, or 1 where it dissipates with each token.

        On the clock of events a sequence is one event, whatever its gaps: 1 − τ0η.

        Args:
            t: Time of the last token.
            rates: Its rates.
        """
        if self.credit.dissipate == "token":
            return 1.0
        if rates.tau != rates.stride:
            rates = self.system.hyper.at(t)
        return self.system.decay(rates)

    def _echo(
        self,
        tokens: list[Token],
        carry: Carry,
        spec: trees.Spec,
        decay: float,
        rates: Rates,
        *,
        learned: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """ω⁺ and v⁺: one update a sequence, with the gain of the last token."""
        drive, theta, gain = self.system.drive, self.system.theta, rates.stride * rates.phi
        losses = [token.loss for token in tokens if token.loss is not None]
        gains = [token.gain for token in tokens if token.loss is not None]
        running = [token for token in tokens if token.running is not None]
        if self.joined and not running and all(one == gain for one in gains):
            dL = vjp(losses, [None] * len(losses), theta, keep=True) if losses else None
            return drive.enter(carry.omega, carry.v, dL, theta, decay, gain)
        if self.credit.dissipate == "token":
            omega = self._echo_by_token(self._reversed(tokens, spec), scaled(carry.omega, decay))
            return drive.penalised(omega, theta, gain) if learned else omega, carry.v
        omega = drive.before(carry.omega, decay)
        if self.joined:
            roots = [*losses, *(token.running for token in running if token.running is not None)]
            gains += [token.rates.stride for token in running]
            seeds = [seed(root, one) for root, one in zip(roots, gains, strict=True)]
            add_(omega, vjp(roots, seeds, theta, keep=True), 1.0)
        else:
            omega = self._echo_by_token(self._reversed(tokens, spec), omega)
        return drive.gather(carry.omega, carry.v, omega, theta, decay, gain, learned=learned)

    def _echo_by_token(self, tokens: Iterator[Token], omega: list[Tensor]) -> list[Tensor]:
        z: list[Tensor] = []
        for token in tokens:
            if not z:
                z = flow = [torch.zeros_like(leaf) for leaf in token.h_next]
            z, flow, omega = self.echo_token(token, z, flow, omega)
        return omega

    def echo_token(
        self, token: Token, z: list[Tensor], flow: list[Tensor], omega: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """One token of the echo: z, what flows on to the token before it, and ω (as in BPTT)."""
        n, stride, eta_z = len(token.h_next), token.rates.stride, token.rates.eta_z
        seeds: list[Tensor | None] = [f - (stride * eta_z) * a for f, a in zip(flow, z, strict=True)]
        roots = list(token.h_next)
        if token.loss is not None:
            roots.append(token.loss)
            seeds.append(seed(token.loss, token.gain))
        if token.running is not None:
            roots.append(token.running)
            seeds.append(seed(token.running, stride))
        grads = vjp(roots, seeds, [*token.h_next, *token.h, *self.system.theta], keep=True)
        if self.credit.dissipate == "token":
            omega = scaled(omega, self.system.decay(token.rates))
        add_(omega, grads[2 * n :], 1.0)
        return grads[:n], grads[n : 2 * n], omega


def _require_way_back(rebuilt: list[Tensor], first: list[Tensor]) -> None:
    """Raise where rebuilding has not led back to the first state, but for rounding."""
    for state, start in zip(rebuilt, first, strict=True):
        away = (state - start.detach()).abs().max().item() if state.numel() else 0.0
        if not away <= _DRIFT * (1.0 + start.detach().abs().max().item() if state.numel() else 1.0):
            raise SampleError(
                f"the states that were rebuilt end {away:.3g} away from h0, so the costates would be wrong: the "
                "state net gave other values when it was run again. Use hl.Echo(memory='stored'), or a state net "
                "that does not change itself and, for long sequences, integrates exactly"
            )


def _copied(sample: Sample) -> Sample:
    target = None if sample.target is None else trees.copied(sample.target)
    return Sample(trees.copied(sample.u), target, sample.tau, sample.boundary, sample.id)
