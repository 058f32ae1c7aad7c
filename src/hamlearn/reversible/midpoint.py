"""Deep networks whose layers are steps of the midpoint rule: backpropagation that stores no activations."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.reversible._chain import Field
from hamlearn.reversible._drive import StepInputs
from hamlearn.reversible._module import Reversible


class Midpoint(Reversible):
    r"""One field, N steps of the midpoint rule, constant memory in N.

    h_{k+1} = h_{k-1} + τ f(u, h_k, θ),   k = 1 … N−1,   started by one Euler step h_1 = h_0 + τ f(u, h_0, θ).

    The backward run rebuilds h_{k-1} = h_{k+1} − τ f(u, h_k, θ) and integrates the costates z (of h) and ω
    (of θ) on the way; the gradients are those of the discrete forward run. With `exact=True` states lie on a
    fixed-point grid, increments are rounded to it (straight through in the gradients), and the rebuilt states
    equal the forward ones bit-for-bit, whatever N. Paper: the midpoint rule.

    Args:
        field: f, called as `field(u, h)`, returns the rate of change of h, of the shape of h.
        steps: N.
        tau: τ.
        exact: hold the states on a fixed-point grid; False lets rounding errors of the rebuild grow with N.
        memory: "reversible" rebuilds the states, "stored" lets autograd keep everything, "checkpoint" keeps
            √N states; the three run the same forward and give the same gradients.
        bound: range of the grid, |h| < bound; a state outside raises `GridOverflowError`. The grid is as fine
            as the range allows: 2^⌈log2 bound⌉/2^24 in float32, 2^⌈log2 bound⌉/2^53 in float64.
        state_dtype: what the states are held in; None: the type of h, float32 if h is of half precision.
        preserve_rng: replay the random numbers of each step (dropout); takes one draw of the global generator.

    Example:
        >>> import torch
        >>> from hamlearn.reversible import AntisymmetricLinear, Midpoint
        >>> net = Midpoint(AntisymmetricLinear(8), steps=100, tau=0.1)
        >>> h = torch.randn(4, 8, requires_grad=True)
        >>> net(h).square().sum().backward()
        >>> h.grad.shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        field: Field,
        steps: int,
        tau: float,
        exact: bool = True,
        memory: str = "reversible",
        *,
        bound: float = 64.0,
        state_dtype: torch.dtype | None = None,
        preserve_rng: bool = True,
    ) -> None:
        super().__init__(tau, exact, memory, bound, state_dtype, preserve_rng)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"steps={steps!r} is not a number of steps: give an integer of at least 1.")
        self.field, self.steps = field, steps

    def forward(self, h: Tensor, u: Any = None) -> Tensor:
        """h_N from h_0 = `h`, driven by the constant signal `u` (a tensor, a tree of tensors, or None)."""
        return self._run([self.field], None, self.steps, h, StepInputs(u))[0]

    def extra_repr(self) -> str:
        """The options that decide what is computed."""
        return f"steps={self.steps}, {super().extra_repr()}"


class MidpointSequential(Reversible):
    r"""One field per step: a reversible deep network of N layers.

    h_{k+1} = h_{k-1} + τ f_k(u, h_k, θ_k), started by one Euler step. Two consecutive steps are a block of a
    reversible residual network: with x_1, x_2 = h_{k-1}, h_k they are y_1 = x_1 + τ f_k(x_2) and
    y_2 = x_2 + τ f_{k+1}(y_1). A field given several times shares its weights. Paper: the midpoint rule.

    Args:
        *fields: f_0 … f_{N-1}, each called as `field(u, h)`.
        tau: τ.
        exact: as in `Midpoint`, like all that follow.
        memory: "reversible", "stored" or "checkpoint".
        bound: range of the grid.
        state_dtype: what the states are held in.
        preserve_rng: replay the random numbers of each step.

    Example:
        >>> import torch
        >>> from hamlearn.reversible import AntisymmetricLinear, MidpointSequential
        >>> net = MidpointSequential(*(AntisymmetricLinear(8) for _ in range(20)), tau=0.1)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), net, torch.nn.Linear(8, 2))
        >>> model(torch.randn(5, 3)).sum().backward()
    """

    def __init__(
        self,
        *fields: Field,
        tau: float,
        exact: bool = True,
        memory: str = "reversible",
        bound: float = 64.0,
        state_dtype: torch.dtype | None = None,
        preserve_rng: bool = True,
    ) -> None:
        super().__init__(tau, exact, memory, bound, state_dtype, preserve_rng)
        plain = [type(f).__name__ for f in fields if not isinstance(f, nn.Module)]
        if not fields or plain:
            raise ConfigError(
                f"MidpointSequential got {len(fields)} fields, of which {plain} are not nn.Modules: give at "
                "least one, each an nn.Module called as field(u, h)."
            )
        self.fields = nn.ModuleList(cast("tuple[nn.Module, ...]", fields))

    def forward(self, h: Tensor, u: Any = None) -> Tensor:
        """h_N from h_0 = `h`, driven by the constant signal `u` (a tensor, a tree of tensors, or None)."""
        return self._run(list(self.fields), None, len(self.fields), h, StepInputs(u))[0]
