"""Messages between neighbouring ranks: tagged, numbered, double-buffered, and never waited for without a limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hamlearn.distributed.header import SIZE, Header, pack_all, unpack_all
from hamlearn.errors import RankError

HEADER, BLOB, STATE, COSTATE = range(4)
_AHEAD = 2
_COUNTED = 128
"""Ticks are told modulo this, which the shortest floating-point numbers hold exactly."""


@dataclass
class Peer:
    """A neighbour: its rank in the whole job, the groups to reach it by, and how long to wait for it.

    Attributes:
        rank: Its rank among all.
        place: Its place in the pipeline, for messages to the user.
        control: A group for headers, on the CPU.
        data: Groups for states and for costates, on the device of the weights.
        timeout: Seconds to wait for one message.
    """

    rank: int
    place: int
    control: dist.ProcessGroup | None
    data: dict[int, dist.ProcessGroup]
    timeout: float

    def close(self) -> None:
        """Let go of the groups."""
        self.control, self.data = None, {}

    def wait(self, work: Any, what: str) -> None:
        """Wait for a message to have come or gone; a named error where it does not."""
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            reason = str(error).split("] ", 1)[-1].split(". This is typically", 1)[0]
            raise RankError(
                f"rank {self.place} of the pipeline did not {what} ({reason}; the time limit is "
                f"{self.timeout:g} s): it has died, hangs, or cannot be reached. Look at the output of that rank "
                "first, and resume from the last checkpoint; torchrun --max-restarts does so by itself"
            ) from error

    def start(self, call: Any, tensor: Tensor, group: dist.ProcessGroup | None, kind: int, what: str) -> Any:
        """Begin to send or to receive."""
        try:
            return call(tensor, self.rank, group=group, tag=kind)
        except (RuntimeError, ValueError) as error:
            raise RankError(f"rank {self.place} of the pipeline cannot be reached to {what}: {error}") from error


def out_of_step(place: int, sent: str, due: int) -> RankError:
    """The error for a message that another tick should have brought."""
    return RankError(
        f"rank {place} sent {sent} where tick {due} was due: the ranks are out of step. Call step, run, flush, "
        "reset and load on every rank alike"
    )


class Sender:
    """One direction to a neighbour. A message may still be under way while the next two are computed."""

    def __init__(self, peer: Peer, kind: int) -> None:
        self._peer, self._kind = peer, kind
        self._under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, value: Tensor | None, like: Tensor, tick: int) -> None:
        """Send a tensor, or word that there is none, with the number of the tick that computed it."""
        body = torch.zeros_like(like).flatten() if value is None else value.flatten()
        end = torch.tensor([tick % _COUNTED, value is not None], dtype=body.dtype, device=body.device)
        self.put(torch.cat([body, end]), self._peer.data[self._kind], "take a message")

    def put(self, message: Tensor, group: dist.ProcessGroup | None, what: str) -> None:
        """Send bytes as they are; waits only for the message before the last one."""
        while len(self._under_way) >= _AHEAD:
            self._peer.wait(self._under_way[0][0], what)
            self._under_way.popleft()
        work = self._peer.start(dist.isend, message, group, self._kind, what)
        self._under_way.append((work, message))

    def settle(self) -> None:
        """Wait until everything has gone."""
        while self._under_way:
            self._peer.wait(self._under_way[0][0], "take a message")
            self._under_way.popleft()

    def drop(self) -> None:
        """Let go of what is under way, when there is no receiver any more."""
        self._under_way.clear()


class Receiver:
    """One direction from a neighbour: messages are asked for before they are needed, and taken in order."""

    def __init__(self, peer: Peer, kind: int) -> None:
        self._peer, self._kind = peer, kind
        self._expected: deque[tuple[Any, Tensor, Tensor, int]] = deque()

    def expect(self, like: Tensor, tick: int) -> None:
        """Ask for what the neighbour computes at `tick`."""
        buffer = torch.empty(like.numel() + 2, dtype=like.dtype, device=like.device)
        work = self._peer.start(dist.irecv, buffer, self._peer.data[self._kind], self._kind, "send a message")
        self._expected.append((work, buffer, like, tick))

    def take(self) -> Tensor | None:
        """The first message asked for; `None` where the neighbour had nothing to tell."""
        work, buffer, like, tick = self._expected[0]
        self._peer.wait(work, f"send what it computed at tick {tick}")
        self._expected.popleft()
        number, there = (int(x) for x in buffer[-2:].real.tolist())
        if number != tick % _COUNTED:
            raise out_of_step(self._peer.place, f"tick {number} (modulo {_COUNTED})", tick)
        return buffer[:-2].view(like.shape) if there else None

    def __len__(self) -> int:
        return len(self._expected)

    def drop(self) -> None:
        """Let go of what was asked for, when it will not be sent any more."""
        self._expected.clear()


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
        self._after = after
        self._sender = None if after is None else Sender(after, HEADER)
        self._blobs = None if after is None else Sender(after, BLOB)

    def receive(self) -> tuple[list[Header], bytes]:
        """The next headers from the rank before, and the description that comes with them, if one does."""
        assert self._before is not None
        data = torch.empty(self.room * SIZE, dtype=torch.uint8)
        self._receive(data, HEADER)
        headers = unpack_all(data)
        blob = torch.empty(headers[0].length, dtype=torch.uint8)
        if len(blob):
            self._receive(blob, BLOB)
        return headers, blob.numpy().tobytes()

    def _receive(self, data: Tensor, kind: int) -> None:
        peer = self._before
        assert peer is not None
        peer.wait(peer.start(dist.irecv, data, peer.control, kind, "send a header"), "send the header of a step")

    def send(self, headers: Sequence[Header], blob: bytes = b"") -> None:
        """Pass headers on to the rank behind this one, if there is one, with one description for all of them."""
        if self._after is None:
            return
        assert self._sender is not None
        assert self._blobs is not None
        first = headers[0] if headers[0].length == len(blob) else replace(headers[0], length=len(blob))
        message = pack_all([first, *headers[1:]], self.room)
        self._sender.put(message, self._after.control, "take the header of a step")
        if blob:
            data = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
            self._blobs.put(data, self._after.control, "take the description of a state")

    def settle(self) -> None:
        """Wait until everything has gone."""
        for sender in (self._sender, self._blobs):
            if sender is not None:
                sender.settle()

    def drop(self) -> None:
        """Let go of what is under way."""
        for sender in (self._sender, self._blobs):
            if sender is not None:
                sender.drop()
