"""What a served learner remembers beside its weights: counts, ids, scales, scores; and the rows of its record."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hamlearn.experiments.run import RECORD
from hamlearn.sample import Id
from hamlearn.serve.bounds import ScaleBound
from hamlearn.serve.scores import RunningScores
from hamlearn.serve.settings import Settings

log = logging.getLogger("hamlearn.serve")
COUNTS = ("samples", "learned", "bad", "seen", "clipped")


class Journal:
    """Counts, ids, scales and scores of one learner; all of them are part of its checkpoint.

    The rows of the record are not: they are for people, and a file that is missing, rotated or full stops nothing.

    Args:
        folder: Where rows are written.
        settings: Sizes and bounds.

    Attributes:
        samples: How many were taken.
        learned: How many of them had a target.
        bad: How many the learner refused, for example because their loss was not finite.
        seen: How many came again, and were not learned again.
        clipped: How many were clipped.
        ids: The last ids that were taken, oldest first.
        last: The last of them.
        resumed: How many samples had been taken when this process took over.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._record, self._every = folder / RECORD, settings.config["records"]["every"]
        self._most, clip = settings.serve["ids"], settings.serve["clip"]
        self.samples = self.learned = self.bad = self.seen = self.clipped = self.resumed = 0
        # An ordinary dict takes long to find its oldest key once many have been removed.
        self.ids: OrderedDict[Id, None] = OrderedDict()
        self.last: Id | None = None
        self.u, self.target = ScaleBound(settings.inputs, clip), ScaleBound(settings.outputs, clip)
        self.scores = RunningScores(settings.classes)
        self._losses: list[float] = []
        self._failing = False

    def take(self, losses: Sequence[float | None], ids: Sequence[Id | None]) -> None:
        """Count samples that were taken; a loss is `None` for a sample without a target."""
        known = [loss for loss in losses if loss is not None]
        self.samples, self.learned = self.samples + len(losses), self.learned + len(known)
        self._losses += known
        for id in ids:
            if id is not None:
                self.ids[id], self.last = None, id
                if len(self.ids) > self._most:
                    self.ids.popitem(last=False)

    def due(self, before: int) -> bool:
        """Whether a row is due, now that there were so many samples before."""
        return self.samples // self._every > before // self._every

    def write_row(self, t: float, hamiltonian: float, norms: Mapping[str, float | None]) -> None:
        """Append a row to the record; a failure is logged once, and learning continues."""
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        row = {"step": self.samples, "t": t, "loss": loss, "hamiltonian": hamiltonian, **norms}
        try:
            # Opened for each row, so that the file can be rotated at any moment.
            with self._record.open("a") as file:
                file.write(json.dumps(row | {"diverging": self.scores.diverging}) + "\n")
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("a row of %s cannot be written (%s); learning continues", self._record, error)
            self._failing = True

    @property
    def counts(self) -> dict[str, int]:
        """What became of samples so far."""
        return {name: getattr(self, name) for name in COUNTS}

    def state_dict(self) -> dict[str, Any]:
        """All but the rows, as JSON."""
        parts = {name: getattr(self, name).state_dict() for name in ("u", "target", "scores")}
        return {
            **parts,
            "counts": self.counts,
            "last": self.last,
            "ids": list(self.ids),
            "losses": self._losses[:],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned."""
        for name, count in state["counts"].items():
            setattr(self, name, int(count))
        for name in ("u", "target", "scores"):
            getattr(self, name).load_state_dict(state[name])
        self.resumed, self.last = self.samples, state["last"]
        self.ids, self._losses = OrderedDict.fromkeys(state["ids"]), list(state["losses"])
