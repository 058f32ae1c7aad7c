"""What the first rank announces before each step: every rank takes the same step, in the same form."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn._base import trees
from hamlearn.distributed.engines import Border
from hamlearn.distributed.headers import SIZE, Form, Header, from_numbers, to_numbers
from hamlearn.distributed.messages import HEADER, Peer, Sender
from hamlearn.distributed.parts import Part
from hamlearn.engine.setting import no_sample, require_gradients
from hamlearn.engine.ticks.ticker import check_input
from hamlearn.errors import SampleError
from hamlearn.sample import Sample


class Announcements:
    """The line along which headers pass from the first rank to the last, and the form of what crosses the borders.

    Args:
        part: What this rank computes.
        border: Its other lines, for which the template of incoming states is kept here.
        before: The rank before.
        after: The rank behind.
        align: Whether samples may have any form at any tick.
        finite: Whether inputs have to be finite.

    Attributes:
        last: Kind of the last header that came.
    """

    def __init__(
        self, part: Part, border: Border, before: Peer | None, after: Peer | None, *, align: bool, finite: bool
    ) -> None:
        self._part, self._border, self._before = part, border, before
        self._sender = None if after is None else Sender(after, HEADER)
        self._align, self._finite = align, finite
        self.last = ""
        # The form of the last input, and the state that this part shows for it.
        self._key: str | None = None
        self._shown: Tensor | None = None

    def form_of(self, sample: Sample | None, *, fresh: bool) -> Tensor | None:
        """On the first rank: the form of the state that is shown for a sample; raises if it cannot be shown."""
        if not isinstance(sample, Sample):
            raise no_sample(sample)
        require_gradients()
        if self._align and self._finite:
            check_input(sample.u, "raise")
        key = trees.describe(sample.u)
        if self._key not in (None, key) and not fresh and not self._align:
            raise SampleError(
                f"u={key} where samples of {self._key} were shown: keep the batch size; or mark the last sample "
                "of a sequence with boundary=True, or reset()"
            )
        return self._form_shown(sample.u, key)

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
