"""What a served learner remembers beside its weights: counts, ids, scales and scores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from hamlearn.sample import Id
from hamlearn.serve.bounds import ScaleBound
from hamlearn.serve.scores import RunningScores
from hamlearn.serve.settings import Settings

COUNTS = ("samples", "learned", "bad", "seen", "clipped")


class Journal:
    """Counts, ids, scales and scores of one learner; all of them are part of its checkpoint.

    Args:
        settings: Sizes and bounds.

    Attributes:
        samples: How many were taken.
        learned: How many of them had a target.
        bad: How many the learner rejected, for example because their loss was not finite.
        seen: How many came again, and were not learned again.
        clipped: How many were clipped.
        ids: The last ids that were taken, oldest first.
        last: The last of them.
        resumed: How many samples had been taken when this process took over.
    """

    def __init__(self, settings: Settings) -> None:
        self._most, clip = settings.serve["ids"], settings.serve["clip"]
        self.samples = self.learned = self.bad = self.seen = self.clipped = self.resumed = 0
        # An ordinary dict takes long to find its oldest key once many have been removed.
        self.ids: OrderedDict[Id, None] = OrderedDict()
        self.last: Id | None = None
        self.u, self.target = ScaleBound(settings.inputs, clip), ScaleBound(settings.outputs, clip)
        self.scores = RunningScores(settings.classes)

    def take(self, ids: Sequence[Id | None], learned: int) -> None:
        """Count samples that were taken, so many of which had a target."""
        self.samples, self.learned = self.samples + len(ids), self.learned + learned
        for id in ids:
            if id is not None:
                self.ids[id], self.last = None, id
                if len(self.ids) > self._most:
                    self.ids.popitem(last=False)

    @property
    def counts(self) -> dict[str, int]:
        """What became of samples so far."""
        return {name: getattr(self, name) for name in COUNTS}

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        parts = {name: getattr(self, name).state_dict() for name in ("u", "target", "scores")}
        return {**parts, "counts": self.counts, "last": self.last, "ids": list(self.ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        for name in COUNTS:
            setattr(self, name, int(state["counts"][name]))
        for name in ("u", "target", "scores"):
            getattr(self, name).load_state_dict(state[name])
        self.resumed, self.last = self.samples, state["last"]
        self.ids = OrderedDict.fromkeys(state["ids"])
