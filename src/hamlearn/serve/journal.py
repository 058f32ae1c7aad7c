"""What a served learner remembers beside its weights: counts, ids, scales, scores; and the rows of its record."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hamlearn.sample import Id
from hamlearn.serve.bounds import ScaleBound
from hamlearn.serve.scores import RunningScores

RECORD = "record.jsonl"

log = logging.getLogger("hamlearn.serve")


class Ids:
    """The last ids that were taken, oldest first.

    Args:
        most: How many are remembered; the oldest are forgotten.
        known: Those that are remembered already.

    Example:
        >>> ids = Ids(2, ["a", 1])
        >>> ids.add("b")
        >>> "a" in ids, 1 in ids, "1" in ids, list(ids)
        (False, True, False, [1, 'b'])
    """

    def __init__(self, most: int, known: Iterable[Id] = ()) -> None:
        self._most = most
        # An ordinary dict takes long to find its oldest key once many have been removed.
        self._known = OrderedDict.fromkeys(known)

    def add(self, id: Id) -> None:
        """Remember an id."""
        self._known[id] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, id: object) -> bool:
        return id in self._known

    def __iter__(self) -> Iterator[Id]:
        return iter(self._known)


class Journal:
    """Counts, ids, scales and scores of one learner; all of them are part of its checkpoint.

    The rows of the record are not: they are for people, and a file that is missing, rotated or full stops nothing.

    Args:
        folder: Where rows are written.
        ids: How many ids of samples are remembered, and how many of labels.
        every: Samples from one row to the next.
        widths: Entries of an input, and of a target that is a vector.
        clip: How many times the scale of those before an entry may have; 0: no bound.
        classes: How many classes there are, if targets are classes.

    Attributes:
        samples: How many were taken.
        learned: How many of them had a target.
        bad: How many the learner refused, for example because their loss was not finite.
        seen: How many came again, and were not learned again.
        clipped: How many were clipped.
        last: The id of the last sample that had one.
        resumed: How many samples had been taken when this process took over.
    """

    def __init__(
        self, folder: Path, ids: int, every: int, widths: tuple[int, int], clip: float, classes: int | None
    ) -> None:
        self._record, self._most, self._every = folder / RECORD, ids, every
        self.ids, self.label_ids = Ids(ids), Ids(ids)
        self.samples = self.learned = self.bad = self.seen = self.clipped = self.resumed = 0
        self.last: Id | None = None
        self.u, self.target = ScaleBound(widths[0], clip), ScaleBound(widths[1], clip)
        self.scores = RunningScores(classes)
        self._losses: list[float] = []
        self._failing = False

    def take(self, losses: list[float | None], ids: list[Id | None] | None) -> None:
        """Count samples that were taken; a loss is `None` for a sample without a target."""
        self.samples += len(losses)
        known = [loss for loss in losses if loss is not None]
        self.learned += len(known)
        self._losses += known
        for id in ids or ():
            if id is not None:
                self.ids.add(id)
                self.last = id

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

    def state_dict(self) -> dict[str, Any]:
        """All but the rows, as JSON."""
        return {
            "counts": [self.samples, self.learned, self.bad, self.seen, self.clipped],
            "last": self.last,
            "ids": list(self.ids),
            "label_ids": list(self.label_ids),
            "losses": list(self._losses),
            "u": self.u.state_dict(),
            "target": self.target.state_dict(),
            "scores": self.scores.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned; rows of samples after it are removed from the record."""
        self.samples, self.learned, self.bad, self.seen, self.clipped = map(int, state["counts"])
        self.resumed, self.last = self.samples, state["last"]
        self.ids, self.label_ids = Ids(self._most, state["ids"]), Ids(self._most, state["label_ids"])
        self._losses = [float(loss) for loss in state["losses"]]
        self.u.load_state_dict(state["u"])
        self.target.load_state_dict(state["target"])
        self.scores.load_state_dict(state["scores"])
        try:
            rows = self._record.read_text().splitlines(keepends=True)
            kept = [row for row in rows if row.endswith("\n") and json.loads(row)["step"] <= self.samples]
            if len(kept) < len(rows):
                self._record.write_text("".join(kept))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is left as it is, since it cannot be read (%s)", self._record, error)
