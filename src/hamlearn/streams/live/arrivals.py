"""What a source gives, as it waits for the learner: checked, and with memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import copied
from hamlearn.streams.clock import to_seconds
from hamlearn.streams.live.wire import Message, Numbers, message_of, tau_of
from hamlearn.streams.values import to_sample


@dataclass(slots=True)
class Arrival:
    """One sample or label as it came in, or an item that is neither.

    Args:
        place: Its name in messages, such as `"line 3 of the socket"`.
        arrived: When it came, by the feed's clock.
        u: The input as an array: many arrays become one tensor faster than many tensors do.
        target: The target as an array.
        id: The id of the sample; of a label `("label", id)`.
        stamp: Its time stamp in seconds; `None` if it has none.
        tau: Time since the item before it, as the source says; that of dropped items is added.
        boundary: Whether it ends a sequence.
        item: A label, or a sample whose tensors cannot be arrays, in place of `u` and `target`.
        extra: Whether it is a label or bad, and takes no place in the queue.
        error: What is wrong with it.
        token: What a broker's message is acknowledged by.
    """

    place: str
    arrived: float
    u: Any = None
    target: Any = None
    id: Any = None
    stamp: float | None = None
    tau: float | None = None
    boundary: bool = False
    item: Sample | Label | None = None
    extra: bool = False
    error: SampleError | None = None
    token: str | None = None


class Arrivals:
    """Makes an `Arrival` of whatever a source gives.

    Args:
        dtype: Of inputs in messages, and of fractions in items that are not tensors; `None`: torch's default.
        target_dtype: Of targets in messages; `None` keeps whole numbers whole.
    """

    def __init__(self, dtype: torch.dtype | None, target_dtype: torch.dtype | None) -> None:
        self._dtype = dtype or torch.get_default_dtype()
        self._inputs, self._targets = Numbers(self._dtype, "u"), Numbers(target_dtype, "target")

    def of(self, item: Any, place: str, now: float) -> Arrival:
        """What a source gave. It is copied, since the source may use its memory again.

        Raises:
            SampleError: It is neither a sample nor a label.
        """
        if type(item) is Message:
            return self._of_message(item, place, now)
        # By type first: asking whether something is a Mapping takes as long as the rest.
        if type(item) is not Sample and isinstance(item, Mapping):
            return self._of_message(message_of(item, place), place, now)
        stamp = None
        if type(item) is tuple and len(item) == 2:
            if isinstance(item[1], Sample):
                stamp, item = to_seconds(item[0], place), item[1]
            elif type(item[0]) is Tensor and type(item[1]) is Tensor:
                item = Sample(*item)
        if isinstance(item, Label):
            return _label(copied(item), place, now)
        if not isinstance(item, Sample):
            item = self._to_sample(item, place)
        if item.u is None:
            raise SampleError(f"{place} has no input. Give each sample its u.")
        tau = None if item.tau is None else tau_of(item.tau, place)
        u, target = _array(item.u), _array(item.target)
        if u is not None and (target is not None or item.target is None):
            return Arrival(place, now, u, target, item.id, stamp, tau, bool(item.boundary))
        return Arrival(place, now, None, None, item.id, stamp, tau, bool(item.boundary), item=copied(item))

    def _of_message(self, message: Message, place: str, now: float) -> Arrival:
        message.check(place)
        target = self._targets.array(message.target, place)
        if message.u is None and message.id is not None:
            return _label(Label(message.id, self._targets.tensor(target)), place, now)
        u, stamp = self._inputs.array(message.u, place), message.t
        if stamp is not None:
            stamp = to_seconds(stamp, place)
        if self._inputs.fits and self._targets.fits:
            return Arrival(place, now, u, target, message.id, stamp, message.tau, message.boundary)
        sample = Sample(self._inputs.tensor(u), None if target is None else self._targets.tensor(target))
        return Arrival(place, now, None, None, message.id, stamp, message.tau, message.boundary, sample)

    def _to_sample(self, item: Any, place: str) -> Sample:
        if item is None:
            return Sample(None)
        try:
            return to_sample(item, self._dtype)
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            raise SampleError(
                f"{place} is not a sample ({error}). Give Samples, pairs (u, target), or inputs: numbers, arrays "
                "or lists of numbers of equal lengths."
            ) from error


def _label(label: Label, place: str, now: float) -> Arrival:
    return Arrival(place, now, id=("label", label.id), item=label, extra=True)


def _array(leaf: Any) -> Any:
    """A copy of a tensor as an array, at a third of the price of a tensor; `None` if it has to stay a tensor."""
    if type(leaf) is not Tensor:
        return None
    try:
        return leaf.numpy().copy("K")
    except (TypeError, RuntimeError):
        # It is on another device, part of a graph, sparse, or of a type that NumPy does not have.
        return None
