"""Echo: BackPropagation Through Time as costates that follow the stream's tokens in reverse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.replay import devices_of, drawing, generators, same_generators
from hamlearn._base.scale import add_, scaled, seed
from hamlearn._base.slots import Slots
from hamlearn.credit import Echo
from hamlearn.errors import ConfigError, SampleError
from hamlearn.loops.draws import GivenDraws
from hamlearn.rates import Rates
from hamlearn.rules.derivatives import instantaneous_loss, vjp
from hamlearn.rules.running_cost import added, running_cost
from hamlearn.rules.system import Instant, Order, Outcome, System
from hamlearn.rules.transition import as_state, end_points, first_state, next_state, rate
from hamlearn.sample import Sample, reported
from hamlearn.state.carry import Carry
from hamlearn.state.packing import sample_tree
from hamlearn.streams.blocks import Block, copied

_DRIFT = 1e-2
"""How far from h0 a rebuilt first state may be, relative to its size."""


@dataclass(slots=True)
class Token:
    """One token with the state it met, and the graph from that state to the next one and to the loss.

    Attributes:
        sample: Input and target, copies of those of the stream.
        rates: Rates of its step.
        h: State that it met.
        h_next: State that it led to; empty if the token has no graph yet, as one from a checkpoint.
        loss: L(y, target), if there was a target.
        y: Output.
        fresh: Whether it began its sequence.
        random: Generators as it met them, if it drew from them.
        buffers: Buffers of the network as it met them.
        running: The running cost, if there is one.
        drawn: Random numbers that it drew in the compiled engine.
    """

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool
    random: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    running: Tensor | None = None
    drawn: list[Tensor] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """τφ, with the nominal τ on the clock of events."""
        return self.rates.stride * self.rates.phi


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive tokens as rows of tensors, as the compiled engine takes them; never written to.

    Attributes:
        rows: `"h"`, the states that they met; `"u"`; `"target"`, empty if no token of the stretch has one;
            `"rates"`, τ, stride, η, η_z, φ and t, where φ is 0 if a token has no target; `"fresh"`, whether a
            token began its sequence; and `"random"`, the random numbers that it drew.
        block: The samples, with structures.
        spec: Structure of the state.
    """

    rows: dict[str, list[Tensor]]
    block: Block
    spec: trees.Spec

    def last(self, count: int) -> Stretch:
        """The last tokens."""
        start = max(self.block.count - count, 0)
        rows = {name: [row[start:] for row in group] for name, group in self.rows.items()}
        return Stretch(rows, self.block.part(start, self.block.count), self.spec)

    def tokens(self) -> list[Token]:
        """The tokens one by one, without graphs."""
        rates, (fresh,) = torch.stack(self.rows["rates"], 1).tolist(), self.rows["fresh"]
        found = []
        for k in range(self.block.count):
            h = [leaf[k].clone() for leaf in self.rows["h"]]
            own = Rates._make([*rates[k][:5], -1, rates[k][5]])
            drawn = [row[k].clone() for row in self.rows["random"]]
            found.append(Token(self.block.sample(k), own, h, [], None, None, bool(fresh[k]), drawn=drawn))
        return found


@dataclass(frozen=True, slots=True)
class WaitingTokens:
    """Tokens that wait for their echo, as a value: one by one, or as stretches that the compiled engine took.

    Attributes:
        single: Tokens one by one, the oldest first.
        since: How many tokens have come since the last echo.
        stretches: Tokens as rows; there are none if there are single ones.
    """

    single: tuple[Token, ...] = ()
    since: int = 0
    stretches: tuple[Stretch, ...] = ()

    def __len__(self) -> int:
        return len(self.single) + sum(stretch.block.count for stretch in self.stretches)

    def tokens(self) -> list[Token]:
        """All of them one by one."""
        return [*self.single, *(token for stretch in self.stretches for token in stretch.tokens())]


_NOTHING = WaitingTokens()


class Echoed(Order):
    """Sequential order over whole sequences: state after state, then the costates along the echo, then θ.

    Where every token echoes and ω dissipates once, the graphs of the tokens are joined, and one differentiation
    of all losses is the whole echo; otherwise each token has its own graph, and the echo is one
    vector-Jacobian product per token. A net is evaluated a second time only where a state is rebuilt, where a
    truncation reaches back beyond the last move of the weights, and after a checkpoint was loaded.
    """

    copies = True

    def __init__(self, system: System, credit: Echo) -> None:
        super().__init__(system, credit)
        if system.velocity.adaptive is not None and credit.dissipate == "token":
            raise ConfigError(
                "hl.Echo(dissipate='token') lets ω forget within a sequence, whose gradient is one moment for an "
                "adaptive beta: use dissipate='sequence'"
            )
        self.rebuilds = credit.memory == "reversible"
        self.joined = credit.truncate is None and credit.dissipate == "sequence" and not self.rebuilds
        self.again = _Again(system.slots)

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """The next token's state and output; at the end of the sequence also the new ω."""
        memory = self._with_graphs(carry)
        due = now.sample.boundary or memory.since + 1 == self.credit.every
        # Tokens outlive their step, and the user may use the memory of the sample again.
        sample = copied(now.sample)
        before = memory.single[-1] if memory.single else None
        if self.joined and before is not None:
            h = before.h_next
        else:
            h = self._first_state(sample, carry.spec) if now.fresh else carry.h
        token, spec = self._replayable(sample, now.rates, h, before, carry.spec, fresh=now.fresh)
        omega, v, learned = carry.omega, carry.v, False
        if due:
            tokens = [*memory.single, token][-(self.credit.truncate or 0) :]
            learned = any(token.sample.target is not None for token in tokens)
            omega, v = self._echo(tokens, memory.since, carry, spec, now, learned=learned)
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
            memory=self._kept(memory, token, sample.boundary, due),
        )

    def _kept(self, memory: WaitingTokens, token: Token, ends: bool, due: bool) -> WaitingTokens:
        """What waits after a token; after an echo, only what a longer truncation reaches back to."""
        if ends or (due and self.credit.truncate is None):
            return _NOTHING
        if self.rebuilds:
            token = replace(token, h=[], h_next=[], loss=None, y=None, running=None)
        single = (*memory.single, token)[-(self.credit.truncate or 0) :]
        return WaitingTokens(single, 0 if due else memory.since + 1)

    def pending(self, memory: WaitingTokens | None) -> int:
        """How many tokens wait for their boundary; none if echoes come at a fixed interval too."""
        return 0 if memory is None or self.credit.every is not None else len(memory)

    def stored(self, memory: WaitingTokens | None) -> int:
        """How many tokens are kept, each with its state."""
        return 0 if memory is None else len(memory)

    def memory_tree(self, memory: WaitingTokens | None) -> Any:
        """Stored tokens: inputs, targets, and the states that they met; their graphs are left out."""
        memory = _NOTHING if memory is None else memory
        kept = ("h", "fresh", "random", "buffers", "drawn")
        tokens = [
            {"sample": sample_tree(token.sample), "rates": tuple(token.rates)}
            | {name: getattr(token, name) for name in kept}
            for token in memory.tokens()
        ]
        return {"tokens": tokens, "since": memory.since}

    def memory_of(self, tree: Any) -> WaitingTokens:
        """The memory that `memory_tree` wrote down; its tokens are run again when the next one comes."""
        tokens = tuple(
            Token(
                Sample(**each["sample"]),
                Rates(*each["rates"]),
                each["h"],
                [],
                None,
                None,
                each["fresh"],
                [state.cpu() for state in each["random"]],
                each["buffers"],
                drawn=each["drawn"],
            )
            for each in tree["tokens"]
        )
        return WaitingTokens(tokens, tree["since"])

    def _with_graphs(self, carry: Carry) -> WaitingTokens:
        """The memory of a carry, with the graphs of its tokens: they are run again if they have none."""
        memory: WaitingTokens = _NOTHING if carry.memory is None else carry.memory
        stored = memory.single
        if self.rebuilds or (stored[-1].h_next if stored else not memory.stretches):
            return memory
        tokens, taken = memory.tokens(), list[Token]()
        for index, token in enumerate(tokens):
            before = taken[-1] if taken else None
            met = self._met(index, token, len(tokens), memory.since)
            h = self._first_state(token.sample, carry.spec) if met == "h0" else token.h
            h = before.h_next if met == "before" and before is not None else h
            taken.append(self._run_again(token, h, before, carry.spec))
        return WaitingTokens(tuple(taken), memory.since)

    def _met(self, index: int, token: Token, count: int, since: int) -> str:
        """From what token `index` of `count` is run again: `"h0"`, the one `"before"`, or the state it `"met"`."""
        if self.joined and index:
            return "before"
        # From before the last echo, whatever it met: the weights have moved since, and a learned h0 with them.
        return "h0" if token.fresh and index >= count - since else "met"

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
        random, buffers = generators(self.again.devices), self.again.buffers()
        if buffers:
            with self.again.on_copies(buffers):
                found, spec = self.run_token(*token, fresh=fresh)
        else:
            found, spec = self.run_token(*token, fresh=fresh)
        found.buffers = buffers
        if not same_generators(random, generators(self.again.devices)):
            found.random = random
        return found, spec

    def _run_again(self, token: Token, h: list[Tensor], before: Token | None, spec: trees.Spec) -> Token:
        with self.again.as_at(token):
            rerun, _ = self._replayable(token.sample, token.rates, h, before, spec, fresh=token.fresh)
        rerun.drawn = token.drawn
        return rerun

    def _reversed(self, tokens: list[Token], since: int, spec: trees.Spec) -> Iterator[Token]:
        """The tokens as they echo, each with a graph at the present weights and the state it met."""
        after = tokens[-1].h_next
        for age, token in enumerate(reversed(tokens)):
            # The weights have moved under the graphs of tokens from before the last echo.
            stale = age > since
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
        since: int,
        carry: Carry,
        spec: trees.Spec,
        now: Instant,
        *,
        learned: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """ω⁺ and v⁺: one update a sequence, with the gain of the last token."""
        rates, decay = now.rates, self.decay(now.t, now.rates)
        drive, theta, gain = self.system.drive, self.system.theta, rates.stride * rates.phi
        losses = [token.loss for token in tokens if token.loss is not None]
        gains = [token.gain for token in tokens if token.loss is not None]
        running = [token for token in tokens if token.running is not None]
        if self.joined and not running and all(one == gain for one in gains):
            dL = vjp(losses, [None] * len(losses), theta, keep=True) if losses else None
            return drive.enter(carry.omega, carry.v, dL, theta, decay, gain)
        if self.credit.dissipate == "token":
            omega = self._echo_by_token(self._reversed(tokens, since, spec), scaled(carry.omega, decay))
            return drive.penalised(omega, theta, gain) if learned else omega, carry.v
        omega = drive.before(carry.omega, decay)
        if self.joined:
            roots = [*losses, *(token.running for token in running if token.running is not None)]
            gains += [token.rates.stride for token in running]
            seeds = [seed(root, one) for root, one in zip(roots, gains, strict=True)]
            add_(omega, vjp(roots, seeds, theta, keep=True), 1.0)
        else:
            omega = self._echo_by_token(self._reversed(tokens, since, spec), omega)
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


class _Again:
    """Lets a token be run again as it was run first, with no trace left in the network or the generators."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.devices = devices_of(slots.parameters.values())

    def buffers(self) -> list[Tensor]:
        """Copies of the buffers."""
        return [buffer.clone() for buffer in self.slots.present()] if self.slots.buffers else []

    @contextmanager
    def on_copies(self, buffers: list[Tensor]) -> Iterator[None]:
        """Within, the network works on copies of its buffers; afterwards its own have the values of the copies.

        The graph of a token keeps the buffers that it was computed with, which the next token changes.
        """
        copies = [buffer.clone() for buffer in buffers]
        with self.slots.exchanged(dict(zip(self.slots.buffers, copies, strict=True))):
            yield
            left = self.slots.present()
        for own, new in zip(self.slots.present(), left, strict=True):
            own.data.copy_(new.detach())

    @contextmanager
    def as_at(self, token: Token) -> Iterator[None]:
        """Within, generators and buffers are as the token met them; afterwards, they are as they were before."""
        held = [buffer.clone() for buffer in (token.buffers or self.slots.present())]
        with self.slots.exchanged(dict(zip(self.slots.buffers, held, strict=True))):
            if token.drawn:
                with GivenDraws(token.drawn):
                    yield
            elif token.random:
                with drawing(self.devices, token.random):
                    yield
            else:
                yield
