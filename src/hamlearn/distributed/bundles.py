"""Several states or costates in one message, each with the tick that computed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn.distributed.links import Peer, Receiver, Sender, out_of_step

_ALIGNED = 16
"""Every tensor begins at a multiple of so many bytes, so that it can be used where it lies, whatever its dtype."""


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
        missing = -len(data) % _ALIGNED
        if missing:
            pieces.append(data.new_zeros(missing))
    return torch.cat(pieces)


def size_of(items: Sequence[Item]) -> int:
    """Bytes of the message that holds these items."""
    return sum(16 + _bytes(item.like) + -_bytes(item.like) % _ALIGNED for item in items)


def unbundled(data: Tensor, items: Sequence[Item]) -> list[tuple[int, Tensor | None]]:
    """The tick and the value of each item, in the form that `items` have."""
    at = 16 * len(items)
    found: list[tuple[int, Tensor | None]] = []
    for (tick, there), item in zip(data[:at].view(torch.int64).view(-1, 2).tolist(), items, strict=True):
        size = _bytes(item.like)
        found.append((tick, data[at : at + size].view(item.like.dtype).view(item.like.shape) if there else None))
        at += size + -size % _ALIGNED
    return found


def _bytes(like: Tensor) -> int:
    return like.numel() * like.element_size()


class BundleSender(Sender):
    """One direction to a neighbour, which also takes several items in one message."""

    def send_all(self, items: Sequence[Item]) -> None:
        """Send items in one message; nothing where there are none."""
        if items:
            self.put(bundled(items), self._peer.data[self._kind], "take a message")


class BundleReceiver(Receiver):
    """One direction from a neighbour, which also brings several items in one message."""

    def __init__(self, peer: Peer, kind: int) -> None:
        super().__init__(peer, kind)
        self._bundles: deque[tuple[Any, Tensor, list[Item], int]] = deque()

    def expect_all(self, items: list[Item], tick: int) -> None:
        """Ask for items that the neighbour sends at `tick`; nothing where there are none."""
        if items:
            buffer = torch.empty(size_of(items), dtype=torch.uint8, device=items[0].like.device)
            group = self._peer.data[self._kind]
            work = self._peer.start(dist.irecv, buffer, group, self._kind, "send a message")
            self._bundles.append((work, buffer, items, tick))

    def take_all(self, before: int) -> list[Item]:
        """All items that were sent before a tick, in order, with their values."""
        taken: list[Item] = []
        while self._bundles and self._bundles[0][3] < before:
            work, buffer, items, tick = self._bundles[0]
            self._peer.wait(work, f"send what it computed up to tick {tick}")
            self._bundles.popleft()
            for item, (number, value) in zip(items, unbundled(buffer, items), strict=True):
                if number != item.tick:
                    raise out_of_step(self._peer.place, f"tick {number}", item.tick)
                item.value = value
            taken += items
        return taken

    def drop(self) -> None:
        """Let go of what was asked for, when it will not be sent any more."""
        super().drop()
        self._bundles.clear()
