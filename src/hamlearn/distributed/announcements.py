"""What the first rank announces before each step: every rank takes the same step, in the same form."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn._base import trees
from hamlearn.distributed.engines import Border
from hamlearn.distributed.messages import HEADER, Peer, Sender
from hamlearn.distributed.parts import Part
from hamlearn.engine.setting import no_sample, require_gradients
from hamlearn.engine.ticks.ticker import check_input
from hamlearn.errors import ConfigError, RankError
from hamlearn.sample import Sample

Kind = Literal["sample", "end", "pause"]
_KINDS: tuple[Kind, ...] = ("sample", "end", "pause")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
_DIMENSIONS = 8
_STEP = 5
SIZE = _STEP + 2 + _DIMENSIONS

Form = tuple[tuple[int, ...], torch.dtype]


class Header(NamedTuple):
    """One step of the pipeline.

    Attributes:
        kind: A sample, the end of the stream, or a pause because `max_steps` is reached.
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


class Announcements:
    """The line along which headers pass from the first rank to the last, and the form of what crosses the borders.

    Args:
        part: What this rank computes.
        border: Its other lines, for which the template of incoming states is kept here.
        before: The rank before.
        after: The rank behind.
        finite: Whether inputs have to be finite.

    Attributes:
        last: Kind of the last header that came.
    """

    def __init__(
        self, part: Part, border: Border, before: Peer | None, after: Peer | None, *, finite: bool
    ) -> None:
        self._part, self._border, self._before = part, border, before
        self._sender = None if after is None else Sender(after, HEADER)
        self._finite = finite
        self.last = ""
        # The form of the last input, and the state that this part shows for it.
        self._key: str | None = None
        self._shown: Tensor | None = None

    def form_of(self, sample: Sample | None) -> Tensor | None:
        """On the first rank: the form of the state that is shown for a sample; raises if it cannot be shown."""
        if not isinstance(sample, Sample):
            raise no_sample(sample)
        require_gradients()
        if self._finite:
            check_input(sample.u, "raise")
        return self._form_shown(sample.u, trees.describe(sample.u))

    def send(self, header: Header, form: Tensor | None = None) -> None:
        """Pass a header, and the form of the state that follows, to the rank behind this one, if there is one."""
        if self._sender is not None:
            self._sender.put(to_numbers(header, form))

    def take(self) -> tuple[Header, Form | None]:
        """The next header from the rank before, and the form of the state that comes with it."""
        assert self._before is not None
        message = torch.empty(SIZE, dtype=torch.float64)
        self._before.wait(self._before.start(dist.irecv, message, HEADER), "send the header of a step")
        return from_numbers(message)

    def settle(self) -> None:
        """Wait until everything has gone."""
        if self._sender is not None:
            self._sender.settle()

    def follow(self, tick: int, *, fresh: bool) -> Header:
        """On other ranks: the header from the rank before, checked and passed on to the next one."""
        header, form = self.take()
        own = None
        if header.kind == "sample":
            header.check(tick, fresh)
            template = self._template(form)
            own = self._form_shown(template, trees.describe(template))
        self.send(header, own)
        self.last = header.kind
        return header

    def forget(self) -> None:
        """Look at the form of the next input again."""
        self._key = None

    def _form_shown(self, u: Any, key: str) -> Tensor | None:
        """A tensor of the form in which this part shows its state to the next rank for an input of form `key`."""
        if key != self._key:
            # On every rank, so that an input that does not fit is found before it enters.
            name, trial = self._part.shown, self._part.system.wiring.start(u)
            self._key, self._shown = key, None if name is None else trial[name]
        return self._shown

    def _template(self, form: Form | None) -> Tensor:
        """Zeros in the form of the states that come in."""
        assert form is not None
        now = self._border.template
        if now is None or (now.shape, now.dtype) != form:
            shape, dtype = form
            device = self._part.system.theta[0].device
            self._border.template = now = torch.zeros(shape, dtype=dtype, device=device)
        return now
