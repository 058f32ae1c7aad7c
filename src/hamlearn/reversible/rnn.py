"""Recurrent networks integrated by the midpoint rule: exact BPTT that stores no states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn.reversible._chain import Field
from hamlearn.reversible._drive import StepInputs
from hamlearn.reversible._module import Reversible


class MidpointRNN(Reversible):
    r"""A recurrent network over a sequence, one midpoint step per token, no state stored.

    h_{k+1} = h_{k-1} + τ f_h(u_k, h_k, θ_h), started by one Euler step;   y_k = f_y(u_k, h_{k+1}, θ_y).

    The backward run is BPTT: z collects ∂y_k/∂h_{k+1} and the product with ∂f_h/∂h_k along the rebuilt states.
    What grows with the length of the sequence is the sequence itself and the outputs; let `readout` return the
    loss of a token (its target a part of u) to keep one number per token. Paper: the midpoint rule, BPTT.

    Args:
        field: f_h, called as `field(u_k, h_k)`.
        tau: τ.
        readout: f_y, called as `readout(u_k, h_{k+1})`; None: no outputs.
        exact: as in `Midpoint`, like all that follow.
        memory: "reversible", "stored" or "checkpoint".
        bound: range of the grid.
        state_dtype: what the states are held in.
        preserve_rng: replay the random numbers of each step.

    Example:
        >>> import torch
        >>> from hamlearn.reversible import AntisymmetricLinear, MidpointRNN
        >>> rnn = MidpointRNN(AntisymmetricLinear(8, inputs=3), tau=0.1)
        >>> y, h = rnn(torch.randn(50, 4, 3), torch.zeros(4, 8))
        >>> h.shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        field: Field,
        tau: float,
        readout: Field | None = None,
        exact: bool = True,
        memory: str = "reversible",
        *,
        bound: float = 64.0,
        state_dtype: torch.dtype | None = None,
        preserve_rng: bool = True,
    ) -> None:
        super().__init__(tau, exact, memory, bound, state_dtype, preserve_rng)
        self.field, self.readout = field, readout

    def forward(self, u: Any, h: Tensor) -> tuple[Tensor | None, Tensor]:
        """The outputs y_0 … y_{T-1}, stacked (None without a readout), and the last state h_T.

        Args:
            u: the sequence, time first: a tensor of shape (T, …) or a tree of such tensors.
            h: the first state h_0.
        """
        drive = StepInputs(u, sequence=True)
        h_last, y = self._run([self.field], self.readout, drive.length(), h, drive)
        return y, h_last
