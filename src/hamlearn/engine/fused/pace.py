"""What is known of the ticks of a block before they run: times, rates, and which sample each one reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.rates import Rates
from hamlearn.rules.local.flights import Entry
from hamlearn.sample import Sample
from hamlearn.streams.blocks import Block

Factors = tuple[float, float, float]
"""κ_m, κ_z and κ_d: how messages, costates and ∂L/∂y of one tick make the costates of the next."""
NOTHING: Factors = (0.0, 0.0, 0.0)
KEPT: Factors = (0.0, 1.0, 0.0)


@dataclass(slots=True)
class Taken:
    """A sample that has been shown for one tick, as far as it may be needed later.

    Attributes:
        t: Time of the tick.
        stride: Its time step, which weighs the loss.
        reported: Whether its output is to be reported.
        u: Its input, on the device.
        target: Its target likewise.
        tau: Its own τ.
        boundary: Whether it ends a sequence.
        source: The sample that the stream gave, or the block that it is in.
        index: Its place in the block.
    """

    t: float
    stride: float
    reported: bool
    u: Tensor
    target: Tensor | None
    tau: float | None
    boundary: bool
    source: Any
    index: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Taken:
        """A sample that a rule carries."""
        sample = entry.sample
        source: Any = entry.given or sample
        return cls(
            entry.t, entry.stride, entry.reported, sample.u, sample.target, sample.tau, sample.boundary, source
        )

    def given(self) -> Sample:
        """What the stream gave."""
        return self.source.sample(self.index) if isinstance(self.source, Block) else self.source


@dataclass(slots=True)
class Shown:
    """The report of a sample: the tick that its output is read in, and what it belongs to."""

    tick: int
    entry: Taken
    rates: Rates


class FusedPace:
    """Rates of all ticks of a block, as far as they are valid.

    Args:
        ticker: Time, updates and rates of the learner.
        block: The samples.
        hold: Ticks that each is shown for.
        lag: Aligned: ticks from a sample's entry to its loss; `None`: unaligned.
        number: Tick that comes first.
        flights: Aligned: samples in flight, by the tick of their entry; those of this block are added.
        fresh: Whether the first sample begins a sequence.
        rows: Inputs and targets of the block on the device, one by one.

    Attributes:
        count: How many samples can be taken; where that is fewer than the block has, the rest is of no use.
        rows: κ_h, κ_m, κ_z, κ_d, decay, and scale by slot, for each tick.
        targets: Target that is compared with in each tick; `None`: none.
        shown: What is reported of each sample.
        factors: The factors of the tick that comes after the block.
    """

    def __init__(
        self,
        ticker: Ticker,
        block: Block,
        hold: int,
        lag: int | None,
        number: int,
        flights: dict[int, Taken],
        fresh: bool,
        rows: tuple[list[Tensor], list[Tensor]],
    ) -> None:
        self.lag = lag
        self.t, self.updates, self.fresh = ticker.t, ticker.updates, fresh
        self.factors: Factors = KEPT
        self.rows: list[list[float]] = []
        self.targets: list[Tensor | None] = []
        self.shown: list[Shown | None] = []
        self._rates: dict[Any, tuple[Rates, list[float]]] = {}
        self._ticker = ticker
        self._still = ticker.usual.constant and not ticker.system.velocity.scheduled
        self.count = 0
        for index in range(block.count):
            try:
                self._show(block, index, hold, number, flights, rows)
            except Exception:
                # The sample is taken by itself when its turn comes, and says what is wrong.
                return
            self.count += 1

    def _show(
        self,
        block: Block,
        index: int,
        hold: int,
        number: int,
        flights: dict[int, Taken],
        rows: tuple[list[Tensor], list[Tensor]],
    ) -> None:
        lag = self.lag
        tau = None if block.tau is None else block.tau[index]
        target, shown = rows[1][index] if block.has_target(index) else None, None
        for tick in range(hold):
            rates, scales = self._at(self.t, tau)
            last, place = tick == hold - 1, number + len(self.rows)
            ends = block.ends(index)
            entry = Taken(self.t, rates.stride, last, rows[0][index], target, tau, ends, block, index)
            due: Taken | None = entry
            if lag is not None:
                flights[place] = entry
                due = flights.get(place - lag)
            compared = None if due is None else due.target
            factors, decay = NOTHING if self.fresh else self.factors, 1 - rates.stride * rates.eta
            self.rows.append([0.0 if self.fresh else 1.0, *factors, decay, *scales])
            self.targets.append(compared)
            if due is not None and (lag is None or due.reported):
                shown = Shown(len(self.rows) - 1, due, rates)
            gain = due.stride * rates.phi if due is not None and compared is not None else 0.0
            dissipated = rates.stride * rates.eta_z
            self.factors = (1.0, -dissipated, gain) if lag is None else (1 - dissipated, 0.0, gain)
            self.fresh = lag is None and last and ends
            self.updates += compared is not None
            self.t += rates.tau
        self.shown.append(shown)

    def _at(self, t: float, tau: float | None) -> tuple[Rates, list[float]]:
        """Rates, and −τβ of each slot."""
        system, first = self._ticker.system, self.updates == 0
        key = tau, first
        if self._still and key in self._rates:
            return self._rates[key]
        rates = system.hyper.at(t, tau, first=first)
        betas = system.velocity.values(t)
        self._ticker.usual.overshoot.look([rates])
        found = rates, [-(rates.stride * float(beta)) for beta in betas]
        self._rates = {key: found}
        return found
