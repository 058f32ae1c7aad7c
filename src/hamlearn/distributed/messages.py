"""Messages between neighbouring ranks: the states and costates of a tick."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn.distributed.place import Place
from hamlearn.errors import RankError

HEADER, STATE, COSTATE = range(3)
_AHEAD = 2
"""Messages of one direction that may be under way."""
_ALIGNED = 16
"""Every tensor in a message begins at a multiple of so many bytes, so that it can be used where it lies."""


class Peer:
    """A neighbour in the pipeline.

    Args:
        place: Where this process stands.
        rank: Of the neighbour.
        device: Where states are.
    """

    def __init__(self, place: Place, rank: int, device: str) -> None:
        self.rank, self.timeout = rank, place.timeout
        control = place.group("control")
        self._groups = dict.fromkeys((HEADER, STATE, COSTATE), control)
        if device != "cpu":
            # NCCL makes the messages between two ranks of one group wait for each other, whichever way they go.
            self._groups |= {STATE: place.group("states", device), COSTATE: place.group("costates", device)}

    def wait(self, work: Any, what: str) -> None:
        """Wait for a message to have come or gone; raises `RankError` if it does not."""
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
            return call(tensor, self.rank, group=self._groups[kind], tag=kind)
        except (RuntimeError, ValueError) as error:
            raise RankError(f"rank {self.rank} of the pipeline cannot be reached: {error}") from error


@dataclass(slots=True)
class Item:
    """One state or costate on its way from rank to rank.

    Attributes:
        tick: When it is computed.
        entry: The tick at which its sample entered.
        like: A tensor of its form.
        value: What it is; `None` if there is none, or if it has not come yet.
    """

    tick: int
    entry: int
    like: Tensor
    value: Tensor | None = None


def packed(items: Sequence[Item]) -> Tensor:
    """Bytes: the tick of each item and whether it has a value, then all values.

    Example:
        >>> import torch
        >>> x = torch.ones(3)
        >>> data = packed([Item(7, 0, x, x), Item(7, 1, x)])
        >>> [(tick, value) for tick, value in unpacked(data, [Item(7, 0, x), Item(7, 1, x)])]
        [(7, tensor([1., 1., 1.])), (7, None)]
    """
    device = items[0].like.device
    marks = torch.tensor([(item.tick, item.value is not None) for item in items], dtype=torch.int64, device=device)
    pieces = [marks.flatten().view(torch.uint8)]
    for item in items:
        body = torch.zeros_like(item.like) if item.value is None else item.value
        # A tensor that is conjugated or negated only by a mark has other bytes than its values.
        data = body.resolve_conj().resolve_neg().flatten().view(torch.uint8)
        pieces += [data, data.new_zeros(-len(data) % _ALIGNED)]
    return torch.cat(pieces)


def unpacked(data: Tensor, items: Sequence[Item]) -> list[tuple[int, Tensor | None]]:
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
        """Send the items of a tick in one message; nothing if there are none."""
        if items:
            self.put(packed(items))

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
        """Ask for items that the neighbour sends at `tick`; nothing if there are none."""
        if items:
            size = sum(16 + item.like.nbytes + -item.like.nbytes % _ALIGNED for item in items)
            buffer = torch.empty(size, dtype=torch.uint8, device=items[0].like.device)
            self._expected.append((self._peer.start(dist.irecv, buffer, self._kind), buffer, items, tick))

    def take(self, before: float = math.inf) -> list[Item]:
        """All items that were to be sent before a tick, in order, with their values."""
        taken: list[Item] = []
        while self._expected and self._expected[0][3] < before:
            work, buffer, items, tick = self._expected[0]
            self._peer.wait(work, f"send what it computed at tick {tick}")
            self._expected.popleft()
            for item, (number, value) in zip(items, unpacked(buffer, items), strict=True):
                if number != item.tick:
                    raise RankError(
                        f"rank {self._peer.rank} sent tick {number} where tick {item.tick} was due: the ranks are "
                        "out of step. Call step, run, flush, reset and load on every rank alike"
                    )
                item.value = value
            taken += items
        return taken
