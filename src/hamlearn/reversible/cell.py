"""One midpoint step per token of a stream, forward and back, for learners that rebuild states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.reversible._chain import Field
from hamlearn.reversible._grid import Grid, Watch
from hamlearn.reversible._rule import Rule, require_tau

Pair = tuple[Tensor, Tensor]


class MidpointCell(nn.Module):
    """A recurrent cell that can run backwards: its state (h_{k-1}, h_k) moves by the midpoint rule.

    h_{k+1} = h_{k-1} + τ f(u_k, h_k, θ), and back: h_{k-1} = h_{k+1} − τ f(u_k, h_k, θ). With
    `hl.Echo(memory="reversible")` a learner stores no states and rebuilds them on the way of the echo; with
    `exact=True` they are rebuilt bit-for-bit. A readout sees h_{k+1}.

    Args:
        field: f, called as `field(u, h)`, returns the rate of change of h.
        size: Number of neurons.
        tau: Step τ of the midpoint rule.
        exact: Hold the states on a fixed-point grid, as in `Midpoint`.
        bound: Range of the grid.

    Example:
        >>> import torch, hamlearn as hl
        >>> cell = hl.reversible.MidpointCell(hl.reversible.AntisymmetricLinear(8, inputs=3), size=8, tau=0.1)
        >>> u = torch.randn(2, 3)
        >>> before = cell(u, cell.initial_state(u))
        >>> after = cell(u, before)
        >>> all(torch.equal(a, b) for a, b in zip(cell.previous(u, after), before))
        True
    """

    def __init__(self, field: Field, size: int, tau: float, exact: bool = True, bound: float = 64.0) -> None:
        super().__init__()
        require_tau(tau)
        if exact:
            Grid(bound, torch.float32)  # a bound that cannot work fails here, not at the first token
        self.field, self.size, self.tau, self.exact, self.bound = field, size, tau, exact, bound

    def initial_state(self, u: Tensor) -> Pair:
        """Zeros, sized by the batch of `u`; h_{-1} = h_0 makes the first step Euler's."""
        weight = next(self.parameters(), u)
        zeros = weight.new_zeros(*u.shape[:-1], self.size)
        return zeros, zeros

    def visible(self, h: Pair) -> Tensor:
        """The newer of the two states."""
        return h[1]

    def forward(self, u: Any, h: Pair) -> Pair:
        """The pair one token later; raises if a state leaves the grid."""
        older, newer = h
        rule = self._rule(newer)
        following = older + rule.increment(0, newer, self.field(u, newer))
        if rule.grid is not None:
            watch = Watch(rule.grid, newer.device, newer.dtype)
            watch.see(0, following)
            watch.check()
        return newer, following

    def previous(self, u: Any, h: Pair) -> Pair:
        """The pair one token earlier, given the input that led from it to `h`."""
        newer, following = h
        with torch.enable_grad():
            # With a graph, as in the forward run: kernels may return other bits when none is asked for.
            rate = self.field(u, newer.detach().requires_grad_()).detach()
        return following - self._rule(newer).increment(0, newer, rate), newer

    def _rule(self, h: Tensor) -> Rule:
        grid = Grid(self.bound, h.dtype) if self.exact else None
        return Rule(self.tau, grid, h.dtype, h.dtype)
