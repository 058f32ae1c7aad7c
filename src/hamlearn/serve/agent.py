"""One served learner: takes rounds of requests, describes its state, and saves itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hamlearn.errors import HamlearnError
from hamlearn.experiments.run.build import build_learner, build_network
from hamlearn.experiments.run.opened import torch_as
from hamlearn.learner import Learner
from hamlearn.record.fields import norms
from hamlearn.sample import Label, Sample
from hamlearn.serve.checkpoints import About, Checkpoints
from hamlearn.serve.forms import Batch, RequestError
from hamlearn.serve.journal import Journal
from hamlearn.serve.settings import Settings
from hamlearn.state import checkpoint

Place = tuple[Any, dict[str, Any]]
"""A sample of a request, and its answer."""
Columns = dict[str, np.ndarray]
"""What a block of samples has, by the names of the arguments of `Learner.scan`."""


class Agent:
    """A learner with its journal and its checkpoints, in a folder of its own.

    All methods but the function that `copy` returns must be called by one thread at a time.

    Args:
        settings: What it is built from.
        folder: Of its checkpoints. It continues from the newest one there.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._settings, self.journal, self.learner = settings, Journal(settings), build(settings)
        self.checkpoints = Checkpoints(folder, settings.serve["keep"], settings.serve["keep_apart"])
        self._dtype = np.dtype(settings.config["run"]["dtype"])
        # How often something changed, and how often it had when the last checkpoint was copied and written.
        self._changes = self._written = 0
        self._copied_at = time.monotonic()
        newest = self.checkpoints.newest
        if newest is not None:
            self._load(newest)
        _compile_step(settings, self.learner, all_of_it=folder == settings.folder)
        self._labels = self.learner.labels
        if newest is None:
            self.copy()()

    def take(self, batches: Iterable[Batch]) -> None:
        """Take samples and labels in their order; what became of each is noted in its batch.

        Samples that need nothing special are learned as one block; others end a block, and are taken alone.
        """
        block: list[Place] = []
        ids: set[Any] = set()
        for batch in batches:
            batch.answers = [{} for _ in batch.rows]
            self._changes += batch.kind != "evaluate"
            for row, answer in zip(batch.rows, batch.answers, strict=True):
                alone = batch.kind != "samples" or (row.id is not None and row.target is None)
                if alone or (row.id is not None and (row.id in ids or row.id in self.journal.ids)):
                    self._learn_block(block)
                    block, ids = [], set()
                    self._take_alone(batch.kind, row, answer)
                    continue
                block.append((row, answer))
                if row.id is not None:
                    ids.add(row.id)
        self._learn_block(block)
        self._labels = self.learner.labels

    def _take_alone(self, kind: str, row: Any, answer: dict[str, Any]) -> None:
        """Take what is not part of a block."""
        if kind == "labels":
            self._label(row, answer)
        elif kind == "evaluate":
            self._evaluate(row, answer)
        elif row.id not in self.journal.ids:
            if row.target is None:
                self._wait_for_label(row, answer)
            else:
                # Its first one was in the block before, and was rejected.
                self._learn_block([(row, answer)])
        else:
            # It was taken before: the present weights answer, and nothing is learned.
            self.journal.seen += 1
            self._evaluate(row, answer)
            answer.update(loss=None, t=self.learner.state.t, sample=None, learned=False, seen=True)

    def _learn_block(self, block: list[Place]) -> None:
        """Clip samples and learn them as one block."""
        if not block:
            return
        rows = [row for row, _ in block]
        # Half the time of np.array.
        numbers = np.fromiter(chain.from_iterable(row.u for row in rows), np.float64)
        columns = {"u": self._clipped(self.journal.u, numbers.reshape(len(rows), -1), block)}
        targets = [row.target for row in rows]
        known = [target is not None for target in targets]
        if any(known):
            if not all(known):
                columns["known"] = np.array(known)
                # Stands for a target that is not known, and changes no scale.
                empty = (
                    0 if self._settings.classes is not None else self._unscaled(np.zeros(self._settings.outputs))
                )
                targets = [empty if target is None else target for target in targets]
            columns["target"] = self._targets(targets, block)
        if any(row.tau is not None for row in rows):
            tau: Any = self.learner.hyper.tau
            columns["tau"] = np.array([tau if row.tau is None else row.tau for row in rows])
        if any(row.boundary for row in rows):
            columns["boundary"] = np.array([bool(row.boundary) for row in rows])
        self._learn(columns, block)

    def _learn(self, columns: Columns, block: list[Place]) -> None:
        """Learn a block. If one of its samples raises, each half is learned by itself, to find which."""
        given: dict[str, Any] = dict(columns)
        given |= {name: torch.from_numpy(columns[name]) for name in ("u", "target") if name in columns}
        try:
            trace = self.learner.scan(**given)
        except HamlearnError as error:
            if len(block) == 1:
                self._refuse(block[0][1], error)
                return
            for part in (slice(None, len(block) // 2), slice(len(block) // 2, None)):
                self._learn({name: column[part] for name, column in columns.items()}, block[part])
            return
        skipped, first = trace.skipped.numpy(), self.journal.samples + 1
        learned = columns.get("known", "target" in columns) & ~skipped
        self._count(trace, columns.get("target"), learned, block)
        losses = [None] * len(block) if trace.loss is None else trace.loss.tolist()
        found = zip(self._unscaled(trace.y.numpy()), losses, trace.t.tolist(), learned.tolist(), strict=True)
        for number, ((_, answer), (y, loss, t, done)) in enumerate(zip(block, found, strict=True), first):
            answer.update(y=y, loss=loss if done else None, t=t, sample=number, learned=done)
        for index in np.flatnonzero(skipped):
            block[index][1]["skipped"] = True

    def _count(self, trace: Any, target: np.ndarray | None, learned: np.ndarray, block: list[Place]) -> None:
        """Count a block that was taken, and score those of its predictions that had a target."""
        journal = self.journal
        journal.take([row.id for row, _ in block], len(block), int(learned.sum()))
        if target is not None and learned.all():
            journal.scores.add(journal.samples, trace.y.numpy(), target, trace.loss.tolist())
        elif target is not None and learned.any():
            losses = trace.loss.numpy()[learned].tolist()
            journal.scores.add(journal.samples, trace.y.numpy()[learned], target[learned], losses)

    def _targets(self, targets: list[Any], places: list[Place]) -> np.ndarray:
        """Targets as the learner sees them, clipped."""
        if self._settings.classes is not None:
            return np.array(targets)
        return self._clipped(self.journal.target, self._scaled(targets), places)

    def _clipped(self, bound: Any, table: np.ndarray, places: list[Place]) -> np.ndarray:
        """Numbers within their bound; answers say which were clipped."""
        table, clipped = bound.clip(table)
        self.journal.clipped += len(clipped)
        for index in clipped:
            places[index][1]["clipped"] = True
        return self._narrow(table)

    def _scaled(self, targets: list[Any]) -> np.ndarray:
        """Targets in deviations: those that never varied are 0, as in `streams.standardize`."""
        table = np.array(targets)
        if self._settings.scale is None:
            return table
        mean, spread = self._settings.scale
        return np.where(spread > 0, (table - mean) / np.where(spread > 0, spread, 1.0), 0.0)

    def _unscaled(self, y: np.ndarray) -> Any:
        """Predictions in the unit of the data."""
        if self._settings.scale is None:
            return y.tolist()
        mean, spread = self._settings.scale
        return (y.astype(np.float64) * spread + mean).tolist()

    def _narrow(self, table: np.ndarray) -> np.ndarray:
        # A number that is too large for the type becomes infinite, for which the learner raises.
        with np.errstate(over="ignore"):
            return table.astype(self._dtype)

    def _refuse(self, answer: dict[str, Any], error: Exception) -> None:
        self.journal.bad += 1
        answer.update(error=str(error), learned=False)

    def _wait_for_label(self, row: Any, answer: dict[str, Any]) -> None:
        """Take a sample whose label is to come later."""
        u = self._clipped(self.journal.u, np.array([row.u]), [(row, answer)])[0]
        try:
            report = self.learner.step(Sample(torch.from_numpy(u), None, row.tau, bool(row.boundary), row.id))
        except HamlearnError as error:
            self._refuse(answer, error)
            return
        self.journal.take([row.id], 1, 0)
        y = self._unscaled(report.y.numpy())
        answer.update(y=y, loss=None, t=report.t, sample=self.journal.samples, learned=False)

    def _label(self, row: Any, answer: dict[str, Any]) -> None:
        """Learn a label with the sample that waits for it."""
        answer.update(id=row.id, loss=None, learned=False, late=False)
        (target,) = self._targets([row.target], [(row, answer)])
        try:
            report = self.learner.step(Label(row.id, torch.as_tensor(target)))
        except HamlearnError as error:
            self._refuse(answer, error)
            return
        answer["late"] = report.sample is None
        if report.sample is not None:
            answer.update(learned=not report.skipped, loss=None if report.loss is None else float(report.loss))

    def _evaluate(self, row: Any, answer: dict[str, Any]) -> None:
        """Predict a sample from the present state and weights, and compute its loss; nothing moves."""
        y = self.learner.predict(torch.from_numpy(self._narrow(np.array(row.u))), row.tau)
        answer.update(y=self._unscaled(y.numpy()), loss=None)
        if row.target is not None:
            one = self._settings.classes is not None
            target = np.array(row.target) if one else self._narrow(self._scaled(row.target))
            answer["loss"] = float(self.learner.loss(y, torch.from_numpy(target)))

    def state(self) -> dict[str, Any]:
        """Where the learner stands, as JSON."""
        journal, newest, scores = self.journal, self.checkpoints.newest, self.journal.scores.read()
        return {
            "position": journal.samples,
            **self.counts,
            "t": self.learner.state.t,
            "norms": norms(self.learner, ("h", "z", "omega", "theta")),
            "last_id": journal.last,
            "diverging": journal.scores.diverging,
            "scores": scores,
            "resumed_at": journal.resumed,
            "checkpoint": None if newest is None else newest._asdict(),
        }

    @property
    def counts(self) -> dict[str, int]:
        """What became of samples and labels so far; any thread may read it."""
        labels = self._labels
        return {**self.journal.counts, "labels": labels.learned, "late": labels.late, "waiting": labels.waiting}

    def copy(self, *, pinned: bool = False) -> Callable[[], About]:
        """Copy what a checkpoint holds; the function returned writes the copy, in any thread."""
        journal, when, changes = self.journal, datetime.now(UTC).isoformat(timespec="seconds"), self._changes
        # In this order: what waits is counted by it, and judged.
        state, noted = self.learner.state_dict(), journal.state_dict()
        about = About(0, journal.samples, journal.last, when, pinned, journal.scores.diverging)
        self._copied_at = time.monotonic()

        def write() -> About:
            written = self.checkpoints.write(about, state, noted)
            self._written = changes
            return written

        return write

    def roll_back(self, number: int | None) -> Callable[[], About]:
        """Become what a checkpoint holds; returns what writes this state as the newest checkpoint.

        Args:
            number: Of the checkpoint; `None`: the last one before the present sample, of those in good health.
        """
        known = {about.number: about for about in self.checkpoints.known}
        healthy = self.checkpoints.healthy_before(self.journal.samples)
        about = healthy if number is None else known.get(number)
        if about is None:
            kept = f"Kept are {list(known)}; see GET /checkpoints."
            raise RequestError(404, f"there is no checkpoint {number or ''} to return to. {kept}")
        self._load(about)
        self._changes += 1
        return self.copy(pinned=True)

    def due(self, interval: float) -> bool:
        """Whether anything has changed since the last checkpoint, and so many seconds have passed."""
        return self._changes > self._written and time.monotonic() - self._copied_at >= interval

    def _load(self, about: About) -> None:
        state, noted = self.checkpoints.read(about)
        journal = Journal(self._settings)
        with checkpoint.reading(f"checkpoint {about.number}"):
            journal.load_state_dict(noted)
        self.learner.load_state_dict(state)
        self.journal = journal


def build(settings: Settings) -> Learner:
    """A learner as the configuration says, with the weights of the seed, or of the run that is served."""
    with torch_as(settings.config["run"]), torch.random.fork_rng():
        torch.manual_seed(settings.config["run"]["seed"])
        sized: Any = settings if settings.run is None else settings.run.stream
        network = build_network(settings.config, sized, settings.classes)
        learner = build_learner(settings.config, network, late=settings.serve["late"])
    if settings.run is not None:
        learner.load_state_dict(settings.run.learner.state_dict())
    return learner


def _compile_step(settings: Settings, learner: Learner, all_of_it: bool) -> None:
    """Let the learner take two samples, so that its step is compiled, and put it back.

    A step without a target is another one. The agent without a key compiles it for all, which find it on the disk.
    """
    state = learner.state_dict()
    u, target = (torch.zeros(2, size, dtype=settings.dtype) for size in (settings.inputs, settings.outputs))
    try:
        learner.scan(u, target if settings.classes is None else torch.zeros(2, dtype=torch.int64))
        if all_of_it:
            learner.scan(u)
    finally:
        learner.load_state_dict(state)
