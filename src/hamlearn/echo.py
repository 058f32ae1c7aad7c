"""Echo: BackPropagation Through Time as costates that follow the stream's tokens in reverse."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn import _tree
from hamlearn.credit import Echo
from hamlearn.hamiltonian import instantaneous_loss, integrate_costate, vjp
from hamlearn.hyper import Rates
from hamlearn.state import Sample
from hamlearn.system import Carry, Instant, Order, Outcome, System
from hamlearn.transition import end_points, next_state


@dataclass(slots=True)
class Token:
    """One token with the state it met, and the graph from that state to the next one and to the loss."""

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool

    @property
    def gain(self) -> float:
        """τφ."""
        return self.rates.tau * self.rates.phi


class Echoed(Order):
    """Sequential order over whole sequences: state after state, then the costates along the echo, then θ.

    Where every token echoes and ω dissipates once, the graphs of the tokens are joined, and one differentiation
    of all losses is the whole echo; otherwise each token has its own graph, and the echo is one
    vector-Jacobian product per token. Neither way evaluates a net twice.
    """

    def __init__(self, system: System, credit: Echo) -> None:
        super().__init__(system)
        self.credit = credit
        self.joined = credit.truncate is None and credit.dissipate == "sequence"
        self.tokens: deque[Token] = deque(maxlen=credit.truncate)
        self.since = 0
        self._stale = False
        self._spec: _tree.Spec = None
        self._proposed: Token | None = None

    def propose(self, carry: Carry, now: Instant) -> Outcome:
        """The next token's state and output; at the end of the sequence also the new ω."""
        due = now.sample.boundary or self.since + 1 == self.credit.every
        h = self._state_met(carry, now)
        before = self.tokens[-1] if self.tokens else None
        token, spec = self._run(now.sample, now.rates, h, before, carry.spec, fresh=now.fresh)
        self._proposed, self._spec = token, spec
        omega, learned = carry.omega, False
        if due:
            tokens = [*self.tokens, token][-(self.credit.truncate or 0) :]
            if self._stale:
                tokens = self._refreshed(tokens, spec)
            learned = any(token.loss is not None for token in tokens)
            echo = self._echo_joined if self.joined else self._echo_by_token
            omega = echo(tokens, carry.omega, now.rates)
        return Outcome(
            [leaf.detach() for leaf in token.h_next],
            carry.z,
            omega,
            token.y,
            None if token.loss is None else token.loss.detach(),
            None,
            spec,
            moves=due,
            learned=learned,
        )

    def accept(self) -> None:
        """Keep the proposed token; after an echo, keep only what a longer truncation reaches back to."""
        assert self._proposed is not None
        token, self._proposed = self._proposed, None
        self.tokens.append(token)
        self.since += 1
        if token.sample.boundary:
            self.forget()
        elif self.since == self.credit.every:
            self.since = 0
            if self.credit.truncate is None:
                self.tokens.clear()
            # The weights have moved under the graphs that are left.
            self._stale = bool(self.tokens)

    def forget(self) -> None:
        """Drop all tokens."""
        self.tokens.clear()
        self.since = 0
        self._stale = False

    def stored(self) -> int:
        """How many tokens are kept, each with its state."""
        return len(self.tokens)

    def pending(self) -> int:
        """How many tokens wait for their boundary; none where echoes come at a fixed interval too."""
        return 0 if self.credit.every is not None else len(self.tokens)

    def state(self) -> tuple[dict[str, Tensor], Any]:
        """Stored tokens: inputs, targets and the states they met."""
        tensors: dict[str, Tensor] = {}
        described = []
        for index, token in enumerate(self.tokens):
            specs = {}
            for part, tree in (("u", token.sample.u), ("target", token.sample.target), ("h", token.h)):
                leaves, spec = _tree.flatten(tree)
                present = tree is not None
                specs[part] = {"present": present, "count": len(leaves), "tree": _tree.dumps(spec)}
                tensors |= {f"{index}/{part}/{i}": leaf for i, leaf in enumerate(leaves) if present}
            described.append({"rates": list(token.rates), "fresh": token.fresh, **specs})
        return tensors, {"tokens": described, "since": self.since, "stale": self._stale}

    def load_state(self, tensors: dict[str, Tensor], described: Any, spec: _tree.Spec) -> None:
        """Run the stored tokens again, from the states they met, to have their graphs back."""
        self.forget()
        for index, saved in enumerate(described["tokens"]):
            parts: dict[str, Any] = {}
            for part in ("u", "target", "h"):
                about = saved[part]
                leaves = [tensors[f"{index}/{part}/{i}"] for i in range(about["count"]) if about["present"]]
                parts[part] = _tree.unflatten(leaves, _tree.loads(about["tree"])) if about["present"] else None
            before = self.tokens[-1] if self.tokens else None
            sample = Sample(parts["u"], parts["target"])
            h = before.h_next if self.joined and before is not None else parts["h"]
            if saved["fresh"]:
                h = _tree.flatten(self.system.network.start(sample.u))[0]
            token, _ = self._run(sample, Rates(*saved["rates"]), h, before, spec, fresh=saved["fresh"])
            self.tokens.append(token)
        self.since, self._stale = described["since"], described["stale"]

    def _state_met(self, carry: Carry, now: Instant) -> list[Tensor]:
        if self.joined and self.tokens:
            return self.tokens[-1].h_next
        if now.fresh:
            # A learned h0 is part of the graph of the first token.
            return _tree.flatten(self.system.network.start(now.sample.u))[0]
        return carry.h

    def _run(
        self,
        sample: Sample,
        rates: Rates,
        h: list[Tensor],
        before: Token | None,
        spec: _tree.Spec,
        *,
        fresh: bool = False,
    ) -> tuple[Token, _tree.Spec]:
        network = self.system.network
        with torch.enable_grad():
            if not self.joined:
                h = [leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in h]
            h_next, spec = next_state(network, h, spec, sample.u, rates.tau)
            leak = before.rates.tau * before.rates.eta_z if self.joined and before is not None else 0.0
            if leak:
                # Adds nothing to h⁺ and −τη_z z to the costate that comes back through it.
                h_next = [b - leak * (a - a.detach()) for a, b in zip(h, h_next, strict=True)]
            h_next = end_points(h_next)
            tree, L = _tree.unflatten(h_next, spec), None
            if sample.target is None:
                with torch.no_grad():
                    y = network.output_net(sample.u, tree)
            else:
                y = network.output_net(sample.u, tree)
                L = instantaneous_loss(self.system.loss, y, sample.target)
        return Token(sample, rates, h, h_next, L, _tree.detach(y), fresh), spec

    def _refreshed(self, tokens: list[Token], spec: _tree.Spec) -> list[Token]:
        """The same tokens at the same states, with graphs at the present weights."""
        return [self._run(t.sample, t.rates, [leaf.detach() for leaf in t.h], None, spec)[0] for t in tokens]

    def _echo_joined(self, tokens: list[Token], omega: list[Tensor], rates: Rates) -> list[Tensor]:
        with_loss = [token for token in tokens if token.loss is not None]
        decay = 1 - rates.tau * rates.eta
        if not with_loss:
            return integrate_costate(omega, None, decay, 1.0)
        losses = [token.loss for token in with_loss if token.loss is not None]
        gains = {token.gain for token in with_loss}
        if len(gains) == 1:
            dH = vjp(losses, [None] * len(losses), self.system.theta, keep=True)
            return integrate_costate(omega, dH, decay, gains.pop())
        seeds = [torch.full_like(L, token.gain) for L, token in zip(losses, with_loss, strict=True)]
        return integrate_costate(omega, vjp(losses, seeds, self.system.theta, keep=True), decay, 1.0)

    def _echo_by_token(self, tokens: list[Token], omega: list[Tensor], rates: Rates) -> list[Tensor]:
        n, theta = len(tokens[-1].h_next), self.system.theta
        by_token = self.credit.dissipate == "token"
        omega = list(torch._foreach_mul(omega, 1.0 if by_token else 1 - rates.tau * rates.eta))
        z = flow = [torch.zeros_like(leaf) for leaf in tokens[-1].h_next]
        for token in reversed(tokens):
            tau, eta, eta_z, _, _ = token.rates
            seeds: list[Tensor | None] = [f - (tau * eta_z) * a for f, a in zip(flow, z, strict=True)]
            roots = list(token.h_next)
            if token.loss is not None:
                roots.append(token.loss)
                seeds.append(torch.full_like(token.loss, token.gain))
            grads = vjp(roots, seeds, [*token.h_next, *token.h, *theta], keep=True)
            z, flow = grads[:n], grads[n : 2 * n]
            if by_token:
                torch._foreach_mul_(omega, 1 - tau * eta)
            torch._foreach_add_(omega, grads[2 * n :])
        return omega
