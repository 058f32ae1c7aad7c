"""Messages between neighbouring ranks: states and costates of some ticks, and headers that say what comes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn.distributed.place import Place
from hamlearn.errors import ConfigError, RankError
from hamlearn.sample import Sample

HEADER, STATE, COSTATE = range(3)
_AHEAD = 2
"""Messages of one direction that may be under way."""
_ALIGNED = 16
"""Every tensor in a message begins at a multiple of so many bytes, so that it can be used where it lies."""


class Peer:
    """A neighbour in the pipeline.

    Args:
        place: Where this process stands.
        rank: Place of the neighbour in the pipeline.
        device: Where states are.
    """

    def __init__(self, place: Place, rank: int, device: str) -> None:
        self.rank, self.timeout = rank, place.timeout
        self._job_rank = place.members[rank]
        control = place.group("control")
        self._groups = dict.fromkeys((HEADER, STATE, COSTATE), control)
        if device != "cpu":
            # NCCL makes the messages between two ranks of one group wait for each other, whichever way they go.
            self._groups |= {STATE: place.group("states", device), COSTATE: place.group("costates", device)}

    def wait(self, work: Any, what: str) -> None:
        """Wait for a message to have come or gone; a named error where it does not."""
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            reason = str(error).split("] ", 1)[-1].split(". This is typically", 1)[0]
            raise RankError(
                f"rank {self.rank} of the pipeline did not {what} ({reason}; the time limit is "
                f"{self.timeout:g} s): it has died, hangs, or cannot be reached. Look at the output of that rank "
                "first, and resume from the last checkpoint; torchrun --max-restarts does so by itself"
            ) from error

    def start(self, call: Any, tensor: Tensor, kind: int) -> Any:
        """Begin to send or to receive."""
        try:
            return call(tensor, self._job_rank, group=self._groups[kind], tag=kind)
        except (RuntimeError, ValueError) as error:
            raise RankError(f"rank {self.rank} of the pipeline cannot be reached: {error}") from error


@dataclass(slots=True)
class Item:
    """One state or costate on its way from rank to rank.

    Attributes:
        tick: When it is computed.
        entry: The tick at which its sample entered.
        like: A tensor of its form.
        value: What it is; `None` where there is nothing to tell, or where it has not come yet.
    """

    tick: int
    entry: int
    like: Tensor
    value: Tensor | None = None


def bundled(items: Sequence[Item]) -> Tensor:
    """Bytes: the tick of each item and whether it has a value, then all values.

    Example:
        >>> import torch
        >>> x = torch.ones(3)
        >>> data = bundled([Item(7, 0, x, x), Item(8, 1, x)])
        >>> [(tick, value) for tick, value in unbundled(data, [Item(7, 0, x), Item(8, 1, x)])]
        [(7, tensor([1., 1., 1.])), (8, None)]
    """
    device = items[0].like.device
    marks = torch.tensor([(item.tick, item.value is not None) for item in items], dtype=torch.int64, device=device)
    pieces = [marks.flatten().view(torch.uint8)]
    for item in items:
        body = torch.zeros_like(item.like) if item.value is None else item.value
        # A tensor that is conjugated or negated only by a mark has other bytes than its values.
        data = body.resolve_conj().resolve_neg().flatten().view(torch.uint8)
        pieces.append(data)
        if missing := -len(data) % _ALIGNED:
            pieces.append(data.new_zeros(missing))
    return torch.cat(pieces)


def unbundled(data: Tensor, items: Sequence[Item]) -> list[tuple[int, Tensor | None]]:
    """The tick and the value of each item, in the form that `items` have."""
    at = 16 * len(items)
    found: list[tuple[int, Tensor | None]] = []
    for (tick, there), item in zip(data[:at].view(torch.int64).view(-1, 2).tolist(), items, strict=True):
        size = item.like.nbytes
        found.append((tick, data[at : at + size].view(item.like.dtype).view(item.like.shape) if there else None))
        at += size + -size % _ALIGNED
    return found


class Sender:
    """One direction to a neighbour. A message may still be under way while the next one is computed."""

    def __init__(self, peer: Peer, kind: int) -> None:
        self._peer, self.kind = peer, kind
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, items: Sequence[Item]) -> None:
        """Send items in one message; nothing where there are none."""
        if items:
            self.put(bundled(items))

    def put(self, message: Tensor) -> None:
        """Send a tensor as it is; waits only for the message before the last one."""
        self._wait(_AHEAD - 1)
        self._under_way.append((self._peer.start(dist.isend, message, self.kind), message))

    def settle(self) -> None:
        """Wait until everything has gone."""
        self._wait(0)

    def _wait(self, left: int) -> None:
        while len(self._under_way) > left:
            self._peer.wait(self._under_way[0][0], "take a message")
            self._under_way.popleft()


class Receiver:
    """One direction from a neighbour: messages are asked for before they are needed, and taken in order."""

    def __init__(self, peer: Peer, kind: int) -> None:
        self._peer, self._kind = peer, kind
        self._expected: deque[tuple[Any, Tensor, list[Item], int]] = deque()

    def expect(self, items: list[Item], tick: int) -> None:
        """Ask for items that the neighbour sends at `tick`; nothing where there are none."""
        if items:
            size = sum(16 + item.like.nbytes + -item.like.nbytes % _ALIGNED for item in items)
            buffer = torch.empty(size, dtype=torch.uint8, device=items[0].like.device)
            self._expected.append((self._peer.start(dist.irecv, buffer, self._kind), buffer, items, tick))

    def take(self, before: float = math.inf) -> list[Item]:
        """All items that were to be sent before a tick, in order, with their values."""
        taken: list[Item] = []
        while self._expected and self._expected[0][3] < before:
            work, buffer, items, tick = self._expected[0]
            self._peer.wait(work, f"send what it computed up to tick {tick}")
            self._expected.popleft()
            for item, (number, value) in zip(items, unbundled(buffer, items), strict=True):
                if number != item.tick:
                    raise RankError(
                        f"rank {self._peer.rank} sent tick {number} where tick {item.tick} was due: the ranks are "
                        "out of step. Call step, run, flush, reset and load on every rank alike"
                    )
                item.value = value
            taken += items
        return taken


Kind = Literal["sample", "end", "pause", "predict"]
_KINDS: tuple[Kind, ...] = ("sample", "end", "pause", "predict")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
_DIMENSIONS = 8
_FORM, _WIDTH = _DIMENSIONS + 2, 5


class Header(NamedTuple):
    """One step of the pipeline, told from rank to rank.

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


def packed(headers: Sequence[Header], form: Tensor | None, room: int) -> Tensor:
    """Headers, and the form of the state that follows, as a tensor whose size depends on `room` alone.

    Example:
        >>> headers, form = unpacked(packed([Header("sample", 7, tau=0.5)], torch.ones(2, 1), room=3))
        >>> headers, form
        ([Header(kind='sample', tick=7, boundary=False, tau=0.5, fresh=False)], ((2, 1), torch.float32))
    """
    numbers = [-1.0] * (_FORM + room * _WIDTH)
    if form is not None:
        if form.dim() > _DIMENSIONS or form.dtype not in _DTYPES:
            raise ConfigError(
                f"a state of {form.dtype}{list(form.shape)} cannot pass from rank to rank: it may have "
                f"{_DIMENSIONS} dimensions at most, and one of the types {[str(d) for d in _DTYPES]}"
            )
        numbers[: form.dim() + 2] = [_DTYPES.index(form.dtype), form.dim(), *form.shape]
    for index, (kind, tick, boundary, tau, fresh) in enumerate(headers):
        at = _FORM + index * _WIDTH
        numbers[at : at + _WIDTH] = [_KINDS.index(kind), tick, boundary, math.nan if tau is None else tau, fresh]
    return torch.tensor(numbers, dtype=torch.float64)


Form = tuple[tuple[int, ...], torch.dtype]


def unpacked(message: Tensor) -> tuple[list[Header], Form | None]:
    """What `packed` put into a message."""
    dtype, dim, *shape = (int(x) for x in message[:_FORM].tolist())
    form = None if dtype < 0 else (tuple(shape[:dim]), _DTYPES[dtype])
    rows = message[_FORM:].view(-1, _WIDTH).tolist()
    return [
        Header(_KINDS[int(kind)], int(tick), bool(boundary), None if math.isnan(tau) else tau, bool(fresh))
        for kind, tick, boundary, tau, fresh in rows
        if kind >= 0
    ], form


class Headers:
    """The line along which headers pass from the first rank to the last.

    Attributes:
        waiting: Steps that the first rank has announced and this one has yet to make.
        room: How many headers a message has room for.
    """

    def __init__(self, before: Peer | None, after: Peer | None, room: int) -> None:
        self.waiting: deque[Header] = deque()
        self.room = room
        self._before = before
        self._sender = None if after is None else Sender(after, HEADER)

    def receive(self) -> tuple[list[Header], Form | None]:
        """The next headers from the rank before, and the form of the state that comes with them."""
        assert self._before is not None
        message = torch.empty(_FORM + self.room * _WIDTH, dtype=torch.float64)
        self._before.wait(self._before.start(dist.irecv, message, HEADER), "send the header of a step")
        return unpacked(message)

    def send(self, headers: Sequence[Header], form: Tensor | None = None) -> None:
        """Pass headers on to the rank behind this one, if there is one."""
        if self._sender is not None:
            self._sender.put(packed(headers, form, self.room))

    def settle(self) -> None:
        """Wait until everything has gone."""
        if self._sender is not None:
            self._sender.settle()
