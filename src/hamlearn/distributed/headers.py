"""Headers: what the first rank is about to do, as a tensor of a fixed size."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, RankError
from hamlearn.sample import Sample

Kind = Literal["sample", "end", "pause", "predict"]
_KINDS: tuple[Kind, ...] = ("sample", "end", "pause", "predict")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
_DIMENSIONS = 8
_STEP = 5
SIZE = _STEP + 2 + _DIMENSIONS

Form = tuple[tuple[int, ...], torch.dtype]


class Header(NamedTuple):
    """One step of the pipeline.

    Attributes:
        kind: A sample, the end of the stream, a pause because `max_steps` is reached, or a prediction.
        tick: How many ticks have been made before this step.
        boundary: Whether the sample ends its sequence.
        tau: Time step of the sample; `None` takes that of `Hyper`.
        fresh: Whether the first rank holds no state and no sample in flight.
    """

    kind: Kind
    tick: int
    boundary: bool = False
    tau: float | None = None
    fresh: bool = False

    def check(self, tick: int, fresh: bool) -> None:
        """Raise unless this rank stands where the first one does."""
        if self.tick != tick or self.fresh != fresh:
            raise RankError(
                f"the first rank is at tick {self.tick}{' after a reset' * self.fresh}, this one at tick "
                f"{tick}{' after a reset' * fresh}: call step, run, flush, reset and load on every rank alike"
            )

    def check_sample(self, sample: Sample) -> None:
        """Raise unless a sample is of the same instant as that of the first rank."""
        own = sample.tau, bool(sample.boundary)
        if own != (self.tau, self.boundary):
            raise RankError(
                f"at tick {self.tick} the first rank took a sample with tau={self.tau}, boundary={self.boundary}, "
                f"the last one has a target with tau={own[0]}, boundary={own[1]}: give both the same stream"
            )


def to_numbers(header: Header, form: Tensor | None) -> Tensor:
    """A header, and the form of the state that follows, as a tensor that always has the same size.

    Example:
        >>> from_numbers(to_numbers(Header("sample", 7, tau=0.5), torch.ones(2, 1)))
        (Header(kind='sample', tick=7, boundary=False, tau=0.5, fresh=False), ((2, 1), torch.float32))
    """
    kind, tick, boundary, tau, fresh = header
    numbers = [_KINDS.index(kind), tick, boundary, math.nan if tau is None else tau, fresh, -1.0, 0.0]
    if form is not None:
        if form.dim() > _DIMENSIONS or form.dtype not in _DTYPES:
            raise ConfigError(
                f"a state of {form.dtype}{list(form.shape)} cannot pass from rank to rank: it may have "
                f"{_DIMENSIONS} dimensions at most, and one of the types {[str(d) for d in _DTYPES]}"
            )
        numbers[_STEP:] = [_DTYPES.index(form.dtype), form.dim(), *form.shape]
    return torch.tensor(numbers + [0.0] * (SIZE - len(numbers)), dtype=torch.float64)


def from_numbers(message: Tensor) -> tuple[Header, Form | None]:
    """The header and the form that `to_numbers` was given."""
    kind, tick, boundary, tau, fresh, dtype, dim, *shape = message.tolist()
    known = None if math.isnan(tau) else tau
    form = None if dtype < 0 else (tuple(int(size) for size in shape[: int(dim)]), _DTYPES[int(dtype)])
    return Header(_KINDS[int(kind)], int(tick), bool(boundary), known, bool(fresh)), form
