"""All that moves in a learner from one sample to the next, as one value."""

from __future__ import annotations

from typing import NamedTuple

from hamlearn.state.carry import Carry
from hamlearn.state.labels import Waiting


class LearnerState(NamedTuple):
    """All that moves from one sample to the next, replaced in one stroke and never written to.

    Weights and buffers live in the network, stored tokens in the order, and the place in the stream in the reader.

    Attributes:
        carry: h, z, ω, and what goes with them.
        t: Time.
        updates: Number of updates that a loss has entered.
        fresh: Whether the next sample begins a sequence.
        waiting: Samples that wait for their labels.
    """

    carry: Carry
    t: float
    updates: int
    fresh: bool
    waiting: Waiting
