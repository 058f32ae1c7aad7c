"""What the reversible modules have in common: their options, checked, and the start of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError, SampleError
from hamlearn.reversible._chain import Chain, Field
from hamlearn.reversible._costate import Output, run
from hamlearn.reversible._drive import StepInputs
from hamlearn.reversible._grid import Grid, Watch
from hamlearn.reversible._replay import Replay
from hamlearn.reversible._rule import Rule, require_tau

MEMORY = ("reversible", "stored", "checkpoint")


class Reversible(nn.Module):
    """Base of the modules that integrate fields by the midpoint rule."""

    def __init__(
        self,
        tau: float,
        exact: bool,
        memory: str,
        bound: float,
        state_dtype: torch.dtype | None,
        preserve_rng: bool,
    ) -> None:
        super().__init__()
        require_tau(tau)
        if memory not in MEMORY:
            raise ConfigError(f"memory={memory!r} is unknown: choose one of {', '.join(map(repr, MEMORY))}.")
        if state_dtype not in (None, torch.float32, torch.float64):
            raise ConfigError(f"state_dtype={state_dtype}: states are held in torch.float32 or torch.float64.")
        self.tau, self.exact, self.memory, self.bound = float(tau), exact, memory, bound
        self.state_dtype, self.preserve_rng = state_dtype, preserve_rng
        self._trusted: dict[int, object] = {}
        if exact:
            Grid(bound, state_dtype or torch.float32)  # a bound that cannot work fails here, not in the first run

    def extra_repr(self) -> str:
        """The options that decide what is computed."""
        grid = f"exact=True, bound={self.bound:g}" if self.exact else "exact=False"
        return f"tau={self.tau:g}, {grid}, memory={self.memory!r}"

    @torch.compiler.disable
    def _run(
        self, fields: Sequence[Field], readout: Field | None, steps: int, h: Tensor, drive: StepInputs
    ) -> Output:
        if not isinstance(h, Tensor) or not h.is_floating_point():
            found = h.dtype if isinstance(h, Tensor) else f"of type {type(h).__name__}"
            raise SampleError(f"the state h is {found}: the midpoint rule moves tensors of a floating-point type.")
        half = h.dtype in (torch.float16, torch.bfloat16)
        dtype = self.state_dtype or (torch.float32 if half else h.dtype)
        grid = Grid(self.bound, dtype) if self.exact else None
        chain = Chain(
            rule=Rule(self.tau, grid, dtype, h.dtype),
            fields=fields,
            readout=readout,
            steps=steps,
            drive=drive,
            replay=Replay(h.device, self.preserve_rng, [*fields, readout]),
            watch=Watch(grid, h.device, dtype) if grid is not None else None,
            trusted=self._trusted,
        )
        return run(chain, h, self.memory)
