"""What has arrived, as samples: each with the true time since the one before it, and each id once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hamlearn.errors import SampleError
from hamlearn.streams.blocks import Block
from hamlearn.streams.clock import logger
from hamlearn.streams.live.messages import Arrival, require_step

USUAL = 16
"""Gaps over which the usual one is an average."""
LEAP, BELIEVED = 10_000, 3
"""How many usual gaps a time stamp may be ahead, and how many of them in a row are believed all the same."""
REMEMBERED = 4096
"""Ids that are kept: a broker that came back from an old snapshot sends again what it had at that time."""


@dataclass(slots=True)
class FeedPlace:
    """How far a feed has been read.

    Attributes:
        taken: Samples and labels that the learner got.
        bad: Items that were left out on the way.
        repeated: Samples and labels that were left out because their id had come before.
        seen: Messages of a broker among those taken.
        token: The last of them.
        stamp: Time stamp of the last sample; `None` if it had none.
        arrived: When that came, by a clock that a later process does not have; `None` before the first.
        owed: Time steps of bad items since.
        gap: The usual gap between time stamps; `None` before there is one.
        leaps: Time stamps in a row that were much too far ahead, and left out.
        ahead: The last of them.
    """

    taken: int = 0
    bad: int = 0
    repeated: int = 0
    seen: int = 0
    token: str | None = None
    stamp: float | None = None
    arrived: float | None = None
    owed: float = 0.0
    gap: float | None = None
    leaps: int = 0
    ahead: float = 0.0

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return asdict(self) | {"arrived": None}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> FeedPlace:
        """The place that `state` returned."""
        return cls(**{name: state[name] for name in cls.__slots__})

    def move(self, arrival: Arrival, good: bool | None) -> None:
        """Go past a sample or label, a bad item (`False`), or one that had come before (`None`)."""
        stamp = arrival.stamp
        if good is None:
            self.repeated += 1
        elif not good:
            if stamp is not None and self.leaps_to(stamp):
                self.leaps, self.ahead = self.leaps + 1, stamp
            self.bad += 1
            self.owed += arrival.tau or 0.0
        else:
            self.taken += 1
            if arrival.token is not None:
                self.seen, self.token = self.seen + 1, arrival.token
        if not good or arrival.u is None:
            # A label takes no time.
            return
        if stamp is not None and self.stamp is not None:
            passed = stamp - self.stamp
            self.gap = passed if self.gap is None else self.gap + (passed - self.gap) / USUAL
        self.stamp, self.arrived, self.owed, self.leaps = stamp, arrival.arrived, 0.0, 0

    def leaps_to(self, stamp: float) -> bool:
        """Whether a time stamp is so far ahead that a wrong clock is more likely than a long gap.

        Believed, it would make all that come after it run backwards. If `BELIEVED` in a row agree, they are right.
        """
        if self.stamp is None or self.gap is None or stamp - self.stamp <= LEAP * self.gap:
            return False
        agrees = self.leaps > 0 and 0 < stamp - self.ahead <= LEAP * self.gap
        return not (agrees and self.leaps >= BELIEVED - 1)


@dataclass(slots=True)
class Read:
    """Samples and labels read from some arrivals.

    Attributes:
        before: Where the feed stood before them.
        looked: The items that were looked at, and whether each was taken; `None`: its id had come before.
        made: The samples and labels: a block, or a list of them.
        error: The error of the last of them; `None` if it is good, or was left out.
    """

    before: FeedPlace
    looked: list[tuple[Arrival, bool | None]] = field(default_factory=list)
    made: Block | list[Any] = field(default_factory=list)
    error: SampleError | None = None

    def until(self, taken: int) -> tuple[FeedPlace, set[Any]]:
        """The place after so many of its samples, and the ids of those behind it."""
        place, stop = replace(self.before), self.before.taken + taken
        for number, (arrival, good) in enumerate(self.looked):
            if place.taken >= stop:
                return place, {one.id for one, good in self.looked[number:] if good}
            place.move(arrival, good)
        return place, set()


class Reading:
    """How arrivals become samples.

    Args:
        unit: Seconds in a unit of time.
        skip_bad: Whether bad items are counted and left out.

    Attributes:
        ids: The ids of the last samples and labels, in order.
    """

    def __init__(self, unit: float, skip_bad: bool) -> None:
        self._unit, self._skip_bad = unit, skip_bad
        self.ids: OrderedDict[Any, None] = OrderedDict()

    def read(self, arrivals: Iterable[Arrival], place: FeedPlace) -> Read:
        """Arrivals as samples and labels, up to the first item that raises; moves the place past it."""
        read = Read(replace(place))
        taken: list[Arrival] = []
        taus: list[float | None] = []
        for arrival in arrivals:
            good: bool | None = False
            tau = None
            try:
                good = self._is_new(arrival, place)
                if good and arrival.u is not None:
                    tau = self._tau(arrival, place)
            except SampleError as error:
                good, read.error = False, None if self._skip_bad else error
            read.looked.append((arrival, good))
            if read.error is not None:
                break
            place.move(arrival, good)
            if good:
                taken.append(arrival)
                taus.append(tau)
                self._remember(arrival.id)
        block = _block(taken, taus)
        read.made = [one.event(tau) for one, tau in zip(taken, taus, strict=True)] if block is None else block
        return read

    def _remember(self, id: Any) -> None:
        if id is not None:
            self.ids[id] = None
        if len(self.ids) > REMEMBERED:
            self.ids.popitem(last=False)

    def _is_new(self, arrival: Arrival, place: FeedPlace) -> bool | None:
        """Whether an arrival is to be taken if its time is right; `None`: it had come before."""
        if arrival.error is not None:
            raise arrival.error
        if arrival.stamp is not None and place.leaps_to(arrival.stamp):
            logger.warning(
                "%s is left out: its time stamp is %.3g ahead of the one before, and gaps of %.3g are usual. "
                "If it is right, number %d of such stamps in a row is believed",
                arrival.place,
                arrival.stamp - (place.stamp or 0.0),
                place.gap,
                BELIEVED,
            )
            return False
        return None if arrival.id is not None and arrival.id in self.ids else True

    def _tau(self, arrival: Arrival, last: FeedPlace) -> float | None:
        """Time since the last sample, by its stamp, its own τ with what bad items owe to it, or its arrival."""
        if arrival.stamp is not None and last.stamp is not None:
            passed = arrival.stamp - last.stamp
            if passed <= 0:
                how = "stands still" if passed == 0 else "runs backwards"
                which = "is" if passed == 0 else f"comes {-passed:g} before"
                raise SampleError(
                    f"time {how} at {arrival.place}: its time stamp {which} that of the last sample. Let the "
                    "source send stamps of a finer resolution, in UTC, or none, so that the time of arrival "
                    'counts; or leave such samples out with bad="skip".'
                )
        elif arrival.tau is not None:
            return require_step(arrival.tau + last.owed, last.owed, arrival.place)
        elif last.arrived is None or arrival.stamp is not None:
            return None
        else:
            # Two arrivals within one tick of the clock are still one after the other.
            passed = max(arrival.arrived - last.arrived, 1e-9)
        return require_step(passed / self._unit, passed, arrival.place)


def _block(arrivals: Sequence[Arrival], taus: list[float | None]) -> Block | None:
    """Arrivals as one block; `None` if they are not all samples without ids, of arrays of one shape and type."""
    # Lists, here and below: a generator takes twice as long for each.
    named = [one.id is not None for one in arrivals]
    if len(arrivals) < 2 or any(named):
        return None
    targets = [one.target for one in arrivals]
    known = [target is not None for target in targets]
    filler = targets[known.index(True)] if any(known) else None
    u = _stacked([one.u for one in arrivals])
    target = None if filler is None else _stacked([filler if one is None else one for one in targets])
    if u is None or (target is None and filler is not None):
        return None
    block = Block(len(arrivals), [u], None, [] if target is None else [target], None)
    block.known = None if target is None or all(known) else known
    block.tau = None if taus == [None] * len(taus) else taus
    ends = [one.boundary for one in arrivals]
    block.boundary = ends if any(ends) else None
    return block


def _stacked(arrays: list[Any]) -> torch.Tensor | None:
    """Arrays of one shape and type as one tensor."""
    first = arrays[0]
    if type(first) is not np.ndarray:
        return None
    shape, dtype = first.shape, first.dtype
    odd = [type(one) is not np.ndarray or one.shape != shape or one.dtype != dtype for one in arrays]
    return None if any(odd) else torch.from_numpy(np.array(arrays))
