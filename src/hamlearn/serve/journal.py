"""What a served learner remembers beside its weights: counts, ids, and the record that the live page shows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamlearn import record
from hamlearn.sample import Id, StepReport
from hamlearn.serve.ids import Ids

RECORD, SPEED, RESUMED = "record.jsonl", "speed.jsonl", "resumed.jsonl"


class _Step:
    """What `record.Divergence` asks of a step; one for all steps of a row."""

    skipped = False

    def __init__(self, theta: float) -> None:
        self.report, self.step, self.loss, self._theta = self, 0, 0.0, theta

    def __getitem__(self, name: str) -> float:
        return self.loss if name == "loss" else self._theta


class Journal:
    """Counts, ids and records of one learner; all of it is part of its checkpoint.

    Args:
        folder: Where records go.
        ids: How many ids of samples are remembered, and how many of labels.
        every: After how many samples a row is written.
        classes: How many classes there are, where targets are classes.

    Attributes:
        samples: How many were taken.
        learned: How many of them had a target.
        bad: How many were refused by the learner, as where their loss is not finite.
        seen: How many came again, and were not learned again.
        last: The id of the last sample that had one.
        began: How many samples had been taken when this process took over.
    """

    def __init__(self, folder: Path, ids: int, every: int, classes: int | None = None) -> None:
        self._folder, self._most, self._every = folder, ids, every
        self.ids, self.label_ids = Ids(ids), Ids(ids)
        self.samples = self.learned = self.bad = self.seen = self.began = 0
        self.last: Id | None = None
        self._rows = record.JsonLines(folder / RECORD, append=True)
        self._speed = record.JsonLines(folder / SPEED, append=True)
        self._watch = record.Divergence(chance=math.log(classes) if classes and classes > 1 else None)
        self._losses: list[float] = []
        self._seconds, self._since = 0.0, time.monotonic()

    def begin(self, theta: float) -> None:
        """Say what norm the weights have before the first sample."""
        self._watch.begin(theta)

    @property
    def diverging(self) -> int | None:
        """Since which sample the learner diverges; `None` where it does not."""
        return self._watch.since

    def samples_taken(self, losses: list[float | None], ids: list[Id | None] | None) -> None:
        """Count samples that were taken; a loss is `None` where there was no target."""
        self.samples += len(losses)
        known = [loss for loss in losses if loss is not None]
        self.learned += len(known)
        self._losses += known
        for id in ids or ():
            if id is not None:
                self.ids.add(id)
                self.last = id

    def look(self, report: StepReport, norms: Mapping[str, float | None], counts: Mapping[str, int]) -> None:
        """Judge the losses since the last row, and write the next one; `report` is that of the last step."""
        losses, step = self._losses, _Step(norms["theta"] or 0.0)
        for step.step, step.loss in enumerate(losses, self.samples - len(losses) + 1):
            self._watch.take(step)  # type: ignore[arg-type]
        row = {
            "step": self.samples,
            "t": report.t,
            "loss": sum(losses) / len(losses) if losses else None,
            "hamiltonian": float(report.hamiltonian),
            **norms,
            "diverging": self.diverging,
        }
        self._rows.put(row, None)
        seconds = self._seconds + time.monotonic() - self._since
        lost = {name: counts[name] for name in ("dropped", "late", "bad")}
        self._speed.put({"step": self.samples, "seconds": seconds, **lost}, None)
        self._losses = []

    def due(self, before: int) -> bool:
        """Whether a row is due, now that there were so many samples before the round."""
        return self.samples // self._every > before // self._every

    def sync(self) -> None:
        """Wait until the disk has all rows that a state tells of; takes as long as the disk does."""
        self._rows.sync()
        self._speed.sync()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON keeps it; it may be written down once `sync` has returned."""
        return {
            "counts": [self.samples, self.learned, self.bad, self.seen],
            "last": self.last,
            "ids": list(self.ids),
            "label_ids": list(self.label_ids),
            "losses": list(self._losses),
            "seconds": self._seconds + time.monotonic() - self._since,
            "rows": self._rows.place(),
            "speed": self._speed.place(),
            "watch": self._watch.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told; rows that were written after it are removed."""
        self.samples, self.learned, self.bad, self.seen = (int(count) for count in state["counts"])
        self.began, self.last = self.samples, state["last"]
        self.ids, self.label_ids = Ids(self._most, state["ids"]), Ids(self._most, state["label_ids"])
        self._losses = [float(loss) for loss in state["losses"]]
        self._seconds, self._since = float(state["seconds"]), time.monotonic()
        self._watch.load_state_dict(state["watch"])
        self._rows.load_state_dict(state["rows"])
        self._speed.load_state_dict(state["speed"])
        if self.samples:
            with (self._folder / RESUMED).open("a") as lives:
                lives.write(json.dumps({"step": self.samples}) + "\n")

    def close(self) -> None:
        """Force the records to the disk."""
        self._rows.close()
        self._speed.close()
