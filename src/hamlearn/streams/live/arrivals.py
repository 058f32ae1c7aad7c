"""What a source gives, as it waits for the learner: copied, with its time, and otherwise hardly changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import copied
from hamlearn.streams.clock import to_seconds
from hamlearn.streams.live.buffer import Arrival
from hamlearn.streams.live.wire import is_label, require_message, tau_of


def of_item(item: Any, place: str, now: float) -> Arrival:
    """What an iterator gave, with memory of its own: the source goes on meanwhile, and may use its memory again.

    Args:
        item: What the source gave.
        place: How it is called in messages.
        now: When it came.

    Raises:
        SampleError: It is neither a sample nor a label.
    """
    # By type first: asking whether something is a Mapping takes as long as the rest.
    if type(item) is dict or (type(item) is not Sample and isinstance(item, Mapping)):
        return of_message(copied(item), place, now)
    stamp = None
    if type(item) is tuple and len(item) == 2 and isinstance(item[1], Sample):
        stamp, item = item
    if isinstance(item, Sample):
        if item.u is None:
            raise _nothing(place)
        stamp = None if stamp is None else to_seconds(stamp, place)
        tau = None if item.tau is None else tau_of(item.tau, place)
        rest = place, now, stamp, tau, bool(item.boundary)
        u, target = _array(item.u), _array(item.target)
        if u is not None and (target is not None or item.target is None):
            return Arrival("arrays", u, target, item.id, *rest)
        return Arrival("item", copied(item), None, None, *rest)
    if isinstance(item, Label):
        return Arrival("item", copied(item), None, None, place, now, label=True)
    if item is None:
        raise _nothing(place)
    if type(item) is tuple and len(item) == 2:
        u, target = _array(item[0]), _array(item[1])
        if u is not None and target is not None:
            return Arrival("arrays", u, target, None, place, now)
    return Arrival("item", copied(item), None, None, place, now)


def of_message(item: Mapping[str, Any], place: str, now: float) -> Arrival:
    """A message, whose memory is not used again.

    Raises:
        SampleError: It is not a message.
    """
    require_message(item, place)
    if is_label(item):
        return Arrival("message", None, item["target"], item["id"], place, now, label=True)
    stamp = item.get("t")
    if stamp is not None:
        stamp = to_seconds(stamp, place)
    tau, boundary = tau_of(item.get("tau"), place), item.get("boundary", False)
    return Arrival("message", item["u"], item.get("target"), item.get("id"), place, now, stamp, tau, boundary)


def _array(leaf: Any) -> Any:
    """A copy of a tensor, as an array: one costs a third of the other. `None` where it has to stay a tensor."""
    if type(leaf) is not Tensor:
        return None
    try:
        return leaf.numpy().copy("K")
    except (TypeError, RuntimeError):
        # It is on another device, part of a graph, sparse, or of a type that NumPy does not have.
        return None


def _nothing(place: str) -> SampleError:
    return SampleError(f"{place} has no input. Give each sample its u.")
