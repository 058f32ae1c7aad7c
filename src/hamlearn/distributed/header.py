"""What the first rank tells all others about a step before they take it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hamlearn.errors import RankError
from hamlearn.sample import Sample

Kind = Literal["sample", "end", "pause", "predict", "none"]
_KINDS: tuple[Kind, ...] = ("sample", "end", "pause", "predict", "none")
_LAYOUT = struct.Struct("<4s?B?xqdq")
_MAGIC = b"hl01"
SIZE = _LAYOUT.size


@dataclass(frozen=True)
class Header:
    """One step of the pipeline, told from rank to rank.

    Attributes:
        kind: A sample, the end of the stream, a pause because `max_steps` is reached, a prediction; or nothing.
        tick: How many ticks have been made before this step.
        boundary: Whether the sample ends its sequence.
        tau: Time step of the sample; `None` takes that of `Hyper`.
        fresh: Whether the first rank holds no state and no sample in flight.
        length: Bytes of the description of a state that follows; 0 where the one before still holds.
    """

    kind: Kind
    tick: int
    boundary: bool = False
    tau: float | None = None
    fresh: bool = False
    length: int = 0

    def pack(self) -> bytes:
        """As bytes.

        Example:
            >>> Header.unpack(Header("sample", tick=3, tau=0.5).pack())
            Header(kind='sample', tick=3, boundary=False, tau=0.5, fresh=False, length=0)
        """
        tau = math.nan if self.tau is None else self.tau
        kind = _KINDS.index(self.kind)
        return _LAYOUT.pack(_MAGIC, self.boundary, kind, self.fresh, self.tick, tau, self.length)

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """From bytes."""
        magic, boundary, kind, fresh, tick, tau, length = _LAYOUT.unpack(data)
        if magic != _MAGIC:
            raise RankError(
                f"a message begins with {magic!r} and not with {_MAGIC!r}: the ranks run different versions of "
                "hamlearn. Install the same one everywhere"
            )
        return cls(_KINDS[kind], tick, boundary, None if math.isnan(tau) else tau, fresh, length)

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


def pack_all(headers: Sequence[Header], room: int) -> Tensor:
    """Up to `room` headers as one message, which is always as long.

    Example:
        >>> [header.tick for header in unpack_all(pack_all([Header("sample", 7), Header("sample", 8)], room=5))]
        [7, 8]
    """
    empty = Header("none", 0).pack() if len(headers) < room else b""
    data = bytearray().join([*(header.pack() for header in headers), *[empty] * (room - len(headers))])
    return torch.frombuffer(data, dtype=torch.uint8)


def unpack_all(data: Tensor) -> list[Header]:
    """The headers that `pack_all` put into a message."""
    whole = data.numpy().tobytes()
    headers = [Header.unpack(whole[at : at + SIZE]) for at in range(0, len(whole), SIZE)]
    return [header for header in headers if header.kind != "none"]


def described(state: Tensor) -> bytes:
    """Shape and dtype of a state that is to come.

    Example:
        >>> import torch
        >>> template(described(torch.ones(2, 1)), torch.device("cpu"))
        tensor([[0.],
                [0.]])
    """
    return json.dumps({"shape": list(state.shape), "dtype": str(state.dtype).removeprefix("torch.")}).encode()


def template(data: bytes, device: torch.device) -> Tensor:
    """Zeros of a shape and dtype that were told."""
    about: dict[str, Any] = json.loads(data)
    return torch.zeros(about["shape"], dtype=getattr(torch, about["dtype"]), device=device)
