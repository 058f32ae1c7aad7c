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
from hamlearn.streams.live.wire import require_step, tensor_of
from hamlearn.streams.values import to_sample


class Place(NamedTuple):
    """How far a feed has been read; a value, so that it changes all at once.

    Attributes:
        taken: Samples and labels that the learner got.
        bad: Items that were left out on the way.
        stamp: Time stamp of the last sample; `None` where it had none.
        arrived: When that came; `None` before the first.
        owed: Time steps of bad items since.
        seen: Messages of a broker, good and bad, that have been looked at.
    """

    taken: int = 0
    bad: int = 0
    stamp: float | None = None
    arrived: float | None = None
    owed: float = 0.0
    seen: int = 0

    def after(self, arrival: Arrival, good: bool = True) -> Place:
        """One sample or label further, or one item that was left out."""
        seen = self.seen + (arrival.token is not None)
        if not good:
            return self._replace(bad=self.bad + 1, owed=self.owed + (arrival.tau or 0.0) + arrival.owed, seen=seen)
        if arrival.label:
            return self._replace(taken=self.taken + 1, seen=seen)
        return Place(self.taken + 1, self.bad, arrival.stamp, arrival.arrived, seen=seen)


class Read(NamedTuple):
    """What was made of some arrivals.

    Attributes:
        before: Where the feed stood before them.
        after: Where it stands after them.
        arrivals: What was looked at, item by item.
        good: Which of them are samples or labels; `None`: all.
        made: The samples and labels: a block, or a list of them.
        error: What was wrong with the last of them; `None` where nothing was, or it was left out.
    """

    before: Place
    after: Place
    arrivals: Sequence[Arrival] = ()
    good: Sequence[bool] | None = None
    made: Block | list[Any] = []  # noqa: RUF012 (never written to)
    error: SampleError | None = None

    def until(self, taken: int) -> Place:
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
        skip_bad: Whether items that are no samples are counted and left out.
        dtypes: Of inputs and targets in messages.
    """

    def __init__(self, unit: float, skip_bad: bool, dtypes: tuple[torch.dtype | None, torch.dtype | None]) -> None:
        self._unit, self._skip_bad = unit, skip_bad
        self._u_dtype, self._target_dtype = dtypes

    def read(self, arrivals: Sequence[Arrival], place: Place) -> Read:
        """What has arrived, up to the first item that is bad where such are not left out."""
        return self._at_once(arrivals, place) or self._one_by_one(arrivals, place)

    def _at_once(self, arrivals: Sequence[Arrival], before: Place) -> Read | None:
        """Samples of one form and shape, none of them bad; `None` where there is anything else."""
        if len(arrivals) == 1:
            return None
        block = in_one_block(arrivals, self._u_dtype or torch.get_default_dtype(), self._target_dtype)
        if block is None:
            return None
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
        last = arrivals[-1]
        after = Place(before.taken + len(arrivals), before.bad, last.stamp, last.arrived, seen=seen)
        return Read(before, after, arrivals, None, block)

    def _taus(self, arrivals: Sequence[Arrival], before: Place) -> list[float | None]:
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

    def _one_by_one(self, arrivals: Sequence[Arrival], before: Place) -> Read:
        events: list[Sample | Label] = []
        good: list[bool] = []
        place, error = before, None
        for arrival in arrivals:
            if arrival.form == "bad":
                good.append(False)
                place = place.after(arrival, False)
                continue
            try:
                events.append(self._label(arrival) if arrival.label else self._sample(arrival, place))
                good.append(True)
            except SampleError as wrong:
                good.append(False)
                if not self._skip_bad:
                    error = wrong
                    break
            place = place.after(arrival, good[-1])
        return Read(before, place, arrivals[: len(good)], good, events, error)

    def _label(self, arrival: Arrival) -> Label:
        if arrival.form == "item":
            return arrival.u
        return Label(arrival.id, tensor_of(arrival.target, self._target_dtype, "target", arrival.place))

    def _sample(self, arrival: Arrival, before: Place) -> Sample:
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
                f"{place} is no sample ({error}). Give Samples, pairs (u, target), or inputs: numbers, arrays "
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
