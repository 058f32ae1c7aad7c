"""What has arrived, as samples: each with the true time since the one before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hamlearn.errors import SampleError
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block
from hamlearn.streams.live.buffer import Arrival
from hamlearn.streams.live.bulk import in_one_block
from hamlearn.streams.live.recent import Recent
from hamlearn.streams.live.wire import require_step, tensor_of
from hamlearn.streams.units import logger
from hamlearn.streams.values import to_sample

USUAL = 16
"""Gaps over which the usual one is an average."""
LEAP, BELIEVED = 10_000, 3
"""How many usual gaps a time stamp may be ahead, and how many of them in a row are believed all the same."""


class FeedPlace(NamedTuple):
    """How far a feed has been read; a value, so that it changes all at once.

    Attributes:
        taken: Samples and labels that the learner got.
        bad: Items that were left out on the way.
        stamp: Time stamp of the last sample; `None` where it had none.
        arrived: When that came; `None` before the first.
        owed: Time steps of bad items since.
        seen: Messages of a broker, good and bad, that have been looked at.
        repeated: Samples that were left out because their id had come before.
        named: Samples with an id.
        gap: The usual gap between time stamps; `None` before there is one.
        leaps: Time stamps in a row that were much too far ahead, and left out.
        ahead: The last of them.
    """

    taken: int = 0
    bad: int = 0
    stamp: float | None = None
    arrived: float | None = None
    owed: float = 0.0
    seen: int = 0
    repeated: int = 0
    named: int = 0
    gap: float | None = None
    leaps: int = 0
    ahead: float = 0.0

    def after(self, arrival: Arrival, good: bool | None = True) -> FeedPlace:
        """One sample or label further, or one item that was left out; `None`: it had come before."""
        seen = self.seen + (arrival.token is not None)
        if good is None:
            return self._replace(seen=seen, repeated=self.repeated + 1)
        if not good:
            leaps, ahead = self.leaps, self.ahead
            if arrival.stamp is not None and self.leaps_to(arrival):
                leaps, ahead = leaps + 1, arrival.stamp
            owed = self.owed + (arrival.tau or 0.0) + arrival.owed
            return self._replace(bad=self.bad + 1, owed=owed, seen=seen, leaps=leaps, ahead=ahead)
        if arrival.label:
            return self._replace(taken=self.taken + 1, seen=seen)
        gap = self.gap
        if arrival.stamp is not None and self.stamp is not None:
            gap = usual(gap, arrival.stamp - self.stamp)
        return self._replace(
            taken=self.taken + 1,
            stamp=arrival.stamp,
            arrived=arrival.arrived,
            owed=0.0,
            seen=seen,
            named=self.named + (arrival.id is not None),
            gap=gap,
            leaps=0,
        )

    def leaps_to(self, arrival: Arrival) -> bool:
        """Whether a time stamp is so far ahead that it is left out: a clock that is wrong, rather than a long gap.

        Believed, it would make all that come after it run backwards. If `BELIEVED` in a row agree, they are right.
        """
        if arrival.stamp is None or self.stamp is None or self.gap is None:
            return False
        most = LEAP * self.gap
        if arrival.stamp - self.stamp <= most:
            return False
        agrees = self.leaps > 0 and 0 < arrival.stamp - self.ahead <= most
        return not (agrees and self.leaps >= BELIEVED - 1)


def usual(gap: float | None, passed: float) -> float:
    """The usual gap between time stamps, after one more."""
    return passed if gap is None else gap + (passed - gap) / USUAL


class Read(NamedTuple):
    """What was made of some arrivals.

    Attributes:
        before: Where the feed stood before them.
        after: Where it stands after them.
        arrivals: What was looked at, item by item.
        good: Which of them are samples or labels, and `None` for one whose id had come before. `None`: all.
        made: The samples and labels: a block, or a list of them.
        error: What was wrong with the last of them; `None` where nothing was, or it was left out.
    """

    before: FeedPlace
    after: FeedPlace
    arrivals: Sequence[Arrival] = ()
    good: Sequence[bool | None] | None = None
    made: Block | list[Any] = []  # noqa: RUF012 (never written to)
    error: SampleError | None = None

    def until(self, taken: int) -> FeedPlace:
        """The place in it after which so many had been taken."""
        place, count = self.before, 0
        while place.taken < taken and count < len(self.arrivals):
            place = place.after(self.arrivals[count], self.good is None or self.good[count])
            count += 1
        return place


class Reading:
    """How arrivals become samples.

    Args:
        unit: Seconds in a unit of time.
        skip_bad: Whether bad items are counted and left out.
        dtypes: Of inputs and targets in messages.
    """

    def __init__(self, unit: float, skip_bad: bool, dtypes: tuple[torch.dtype | None, torch.dtype | None]) -> None:
        self._unit, self._skip_bad = unit, skip_bad
        self.recent = Recent()
        self._u_dtype, self._target_dtype = dtypes

    def read(self, arrivals: Sequence[Arrival], place: FeedPlace) -> Read:
        """What has arrived, up to the first item that is bad where such are not left out."""
        return self._at_once(arrivals, place) or self._one_by_one(arrivals, place)

    def _at_once(self, arrivals: Sequence[Arrival], before: FeedPlace) -> Read | None:
        """Samples of one form and shape, none of them bad; `None` where there is anything else."""
        if len(arrivals) == 1:
            return None
        block = in_one_block(arrivals, self._u_dtype or torch.get_default_dtype(), self._target_dtype)
        if block is None:
            return None
        gap = before.gap
        for then, now in itertools.pairwise([before.stamp, *[arrival.stamp for arrival in arrivals]]):
            if now is not None and then is not None:
                if gap is not None and now - then > LEAP * gap:
                    return None
                gap = usual(gap, now - then)
        try:
            taus = self._taus(arrivals, before)
        except SampleError:
            return None
        if any(tau is not None for tau in taus):
            block.tau = taus
        ends = [arrival.boundary for arrival in arrivals]
        if any(ends):
            block.boundary = ends
        seen = before.seen + sum([arrival.token is not None for arrival in arrivals])
        last, taken = arrivals[-1], before.taken + len(arrivals)
        after = before._replace(
            taken=taken, stamp=last.stamp, arrived=last.arrived, owed=0.0, seen=seen, gap=gap, leaps=0
        )
        return Read(before, after, arrivals, None, block)

    def _taus(self, arrivals: Sequence[Arrival], before: FeedPlace) -> list[float | None]:
        """The time since the sample before, of each of them."""
        taus = [self._tau(arrivals[0], before.stamp, before.arrived, before.owed)]
        untimed = [arrival.stamp is None and arrival.tau is None for arrival in arrivals]
        if all(untimed):
            # By the clock alone, as most feeds are, and so without a call for each.
            times, unit = [arrival.arrived for arrival in arrivals], self._unit
            gaps = [max(now - then, 1e-9) / unit for then, now in itertools.pairwise(times)]
            if min(gaps) > 0.0 and math.isfinite(sum(gaps)):
                return [*taus, *gaps]
        for then, now in itertools.pairwise(arrivals):
            taus.append(self._tau(now, then.stamp, then.arrived, 0.0))
        return taus

    def _one_by_one(self, arrivals: Sequence[Arrival], before: FeedPlace) -> Read:
        events: list[Sample | Label] = []
        good: list[bool | None] = []
        place, error = before, None
        for arrival in arrivals:
            if arrival.form == "bad" or self._is_left_out(arrival, place):
                good.append(False)
                place = place.after(arrival, False)
                continue
            if arrival.id is not None and not arrival.label and arrival.id in self.recent:
                good.append(None)
                place = place.after(arrival, None)
                continue
            try:
                events.append(self._label(arrival) if arrival.label else self._sample(arrival, place))
                good.append(True)
                if arrival.id is not None and not arrival.label:
                    self.recent.note(arrival.id)
            except SampleError as wrong:
                good.append(False)
                if not self._skip_bad:
                    error = wrong
                    break
            place = place.after(arrival, good[-1])
        return Read(before, place, arrivals[: len(good)], good, events, error)

    def _is_left_out(self, arrival: Arrival, place: FeedPlace) -> bool:
        """Whether its time stamp is much too far ahead; says so."""
        leaps = place.leaps_to(arrival)
        if leaps:
            logger.warning(
                "%s is left out: its time stamp is %.3g ahead of the one before, and gaps of %.3g are usual. "
                "If it is right, number %d of such stamps in a row is believed",
                arrival.place,
                (arrival.stamp or 0.0) - (place.stamp or 0.0),
                place.gap,
                BELIEVED,
            )
        return leaps

    def _label(self, arrival: Arrival) -> Label:
        if arrival.form == "item":
            return arrival.u
        return Label(arrival.id, tensor_of(arrival.target, self._target_dtype, "target", arrival.place))

    def _sample(self, arrival: Arrival, before: FeedPlace) -> Sample:
        tau = self._tau(arrival, before.stamp, before.arrived, before.owed)
        u, target, place = arrival.u, arrival.target, arrival.place
        if arrival.form == "arrays":
            target = None if target is None else torch.from_numpy(target)
            return Sample(torch.from_numpy(u), target, tau, arrival.boundary, arrival.id)
        if arrival.form == "message":
            u = tensor_of(u, self._u_dtype or torch.get_default_dtype(), "u", place)
            target = tensor_of(target, self._target_dtype, "target", place)
            return Sample(u, target, tau, arrival.boundary, arrival.id)
        try:
            sample = to_sample(u, self._u_dtype)
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            raise SampleError(
                f"{place} is not a sample ({error}). Give Samples, pairs (u, target), or inputs: numbers, arrays "
                "or lists of numbers of equal lengths."
            ) from error
        return Sample(sample.u, sample.target, tau, sample.boundary, sample.id)

    def _tau(self, arrival: Arrival, stamp: float | None, arrived: float | None, owed: float) -> float | None:
        """Time since the last sample, by its stamp, its own τ with what bad items owe to it, or its arrival."""
        place = arrival.place
        if arrival.stamp is not None and stamp is not None:
            passed = arrival.stamp - stamp
            if passed <= 0:
                how = "stands still" if passed == 0 else "runs backwards"
                which = "is" if passed == 0 else f"comes {-passed:g} before"
                raise SampleError(
                    f"time {how} at {place}: its time stamp {which} that of the last sample. Let the source send "
                    "stamps of a finer resolution, in UTC, or none, so that the time of arrival counts; or leave "
                    'such samples out with bad="skip".'
                )
            return require_step(passed / self._unit, passed, place)
        if arrival.tau is not None:
            owed += arrival.owed
            return require_step(arrival.tau + owed, owed, place)
        if arrived is None or arrival.stamp is not None:
            return None
        # Two arrivals within one tick of the clock are still one after the other.
        passed = max(arrival.arrived - arrived, 1e-9)
        return require_step(passed / self._unit, passed, place)
