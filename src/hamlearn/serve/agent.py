"""One served learner: takes rounds of requests, describes its state, and saves itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
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
from hamlearn.serve.forms import Batch, Refused
from hamlearn.serve.journal import Journal
from hamlearn.serve.settings import Settings

Place = tuple[Any, dict[str, Any]]
"""A sample of a request, and its answer."""


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
        self._changed, self._saved_at = False, time.monotonic()
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
            self._changed = self._changed or batch.kind != "evaluate"
            for row, answer in zip(batch.rows, batch.answers, strict=True):
                alone = batch.kind != "samples" or (row.id is not None and row.target is None)
                if alone or row.id in ids or row.id in self.journal.ids:
                    self._learn_block(block)
                    block, ids = [], set()
                if batch.kind != "samples":
                    (self._label if batch.kind == "labels" else self._evaluate)(row, answer)
                elif row.id in self.journal.ids:
                    self._answer_again(row, answer)
                elif alone:
                    self._wait_for_label(row, answer)
                else:
                    block.append((row, answer))
                    ids |= set() if row.id is None else {row.id}
        self._learn_block(block)
        self._labels = self.learner.labels

    def _learn_block(self, block: list[Place]) -> None:
        """Clip samples and learn them as one block."""
        if not block:
            return
        # Stands for a target that is not known, and changes no scale.
        empty = 0 if self._settings.classes is not None else self._settings.scale[0].tolist()
        known = np.array([row.target is not None for row, _ in block])
        columns = {
            "u": self._inputs(block),
            "target": self._targets([empty if row.target is None else row.target for row, _ in block], block),
            "known": known,
        }
        if any(row.tau is not None for row, _ in block):
            tau: Any = self.learner.hyper.tau
            columns["tau"] = np.array([tau if row.tau is None else row.tau for row, _ in block])
        if any(row.boundary for row, _ in block):
            columns["boundary"] = np.array([bool(row.boundary) for row, _ in block])
        self._learn(columns, block)

    def _learn(self, columns: dict[str, np.ndarray], block: list[Place]) -> None:
        """Learn a block. If one of its samples raises, each half is learned by itself, to find which."""
        known = columns["known"]
        given: dict[str, Any] = {"target": torch.from_numpy(columns["target"])} if known.any() else {}
        if known.any() and not known.all():
            given["known"] = known
        given |= {name: columns[name] for name in ("tau", "boundary") if name in columns}
        try:
            trace = self.learner.scan(torch.from_numpy(columns["u"]), **given)
        except HamlearnError as error:
            if len(block) == 1:
                self._refuse(block[0][1], error)
                return
            for part in (slice(None, len(block) // 2), slice(len(block) // 2, None)):
                self._learn({name: column[part] for name, column in columns.items()}, block[part])
            return
        y, skipped, first = trace.y.numpy(), trace.skipped.numpy(), self.journal.samples + 1
        learned = known & ~skipped
        self.journal.take([row.id for row, _ in block], int(learned.sum()))
        losses = [None] * len(block) if trace.loss is None else trace.loss.tolist()
        if learned.any():
            kept = [loss for loss, one in zip(losses, learned, strict=True) if one]
            self.journal.scores.add(self.journal.samples, y[learned], columns["target"][learned], kept)
        rows = zip(self._unscaled(y), losses, trace.t.tolist(), learned.tolist(), skipped.tolist(), strict=True)
        for k, (one, loss, t, done, passed_over) in enumerate(rows):
            block[k][1].update(y=one, loss=loss if done else None, t=t, sample=first + k, learned=done)
            if passed_over:
                block[k][1]["skipped"] = True

    def _inputs(self, places: Sequence[Place]) -> np.ndarray:
        u, clipped = self.journal.u.clip(np.array([row.u for row, _ in places]))
        self._note_clipped(clipped, places)
        return self._narrow(u)

    def _targets(self, targets: list[Any], places: Sequence[Place]) -> np.ndarray:
        table = self._scaled(targets)
        if self._settings.classes is None:
            table, clipped = self.journal.target.clip(table)
            self._note_clipped(clipped, places)
        return self._narrow(table)

    def _scaled(self, targets: list[Any]) -> np.ndarray:
        """Targets as the learner sees them: those that never varied are 0, as in `streams.standardize`."""
        if self._settings.classes is not None:
            return np.array(targets)
        mean, spread = self._settings.scale
        return np.where(spread > 0, (np.array(targets) - mean) / np.where(spread > 0, spread, 1.0), 0.0)

    def _unscaled(self, y: Any) -> Any:
        """Predictions in the unit of the data."""
        mean, spread = self._settings.scale
        return (np.asarray(y, np.float64) * spread + mean).tolist()

    def _narrow(self, table: np.ndarray) -> np.ndarray:
        # A number that is too large for the type becomes infinite, for which the learner raises.
        with np.errstate(over="ignore"):
            return table.astype(self._dtype) if table.dtype.kind == "f" else table

    def _note_clipped(self, clipped: list[int], places: Sequence[Place]) -> None:
        self.journal.clipped += len(clipped)
        for index in clipped:
            places[index][1]["clipped"] = True

    def _refuse(self, answer: dict[str, Any], error: Exception) -> None:
        self.journal.bad += 1
        self.journal.scores.refused(self.journal.samples)
        answer.update(error=str(error), learned=False)

    def _wait_for_label(self, row: Any, answer: dict[str, Any]) -> None:
        """Take a sample whose label is to come later."""
        u = torch.from_numpy(self._inputs([(row, answer)])[0])
        try:
            report = self.learner.step(Sample(u, None, row.tau, bool(row.boundary), row.id))
        except HamlearnError as error:
            self._refuse(answer, error)
            return
        self.journal.take([row.id], 0)
        y, number = self._unscaled(report.y), self.journal.samples
        answer.update(y=y, loss=None, t=report.t, sample=number, learned=False)

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

    def _answer_again(self, row: Any, answer: dict[str, Any]) -> None:
        """Answer a sample that was taken before by the present weights; nothing is learned."""
        self.journal.seen += 1
        self._evaluate(row, answer)
        answer.update(loss=None, t=self.learner.state.t, sample=None, learned=False, seen=True)

    def _evaluate(self, row: Any, answer: dict[str, Any]) -> None:
        """Predict a sample from the present state and weights, and compute its loss; nothing moves."""
        y = self.learner.predict(torch.from_numpy(self._narrow(np.array(row.u))), row.tau)
        answer.update(y=self._unscaled(y), loss=None)
        if row.target is not None:
            target = torch.from_numpy(self._narrow(self._scaled([row.target])))
            answer["loss"] = float(self.learner.loss(y, target[0]))

    def state(self) -> dict[str, Any]:
        """Where the learner stands, as JSON."""
        journal, newest = self.journal, self.checkpoints.newest
        return {
            "position": journal.samples,
            **self.counts,
            "t": self.learner.state.t,
            "norms": norms(self.learner, ("h", "z", "omega", "theta")),
            "last_id": journal.last,
            "diverging": journal.scores.diverging,
            "scores": journal.scores.read(),
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
        journal, when = self.journal, datetime.now(UTC).isoformat(timespec="seconds")
        about = About(0, journal.samples, journal.last, when, pinned, journal.scores.diverging)
        state, noted = self.learner.state_dict(), journal.state_dict()
        self._changed, self._saved_at = False, time.monotonic()

        def write() -> About:
            try:
                return self.checkpoints.write(about, state, noted)
            except BaseException:
                self._changed = True
                raise

        return write

    def roll_back(self, number: int | None) -> Callable[[], About]:
        """Become what a checkpoint holds; returns what writes this state as the newest checkpoint.

        Args:
            number: Of the checkpoint; `None`: the last one before the newest that was taken in good health.
        """
        known = {about.number: about for about in self.checkpoints.known}
        about = self.checkpoints.healthy_before() if number is None else known.get(number)
        if about is None:
            kept = f"Kept are {list(known)}; see GET /checkpoints."
            raise Refused(404, f"there is no checkpoint {number or ''} to return to. {kept}")
        self._load(about)
        return self.copy(pinned=True)

    def due(self, interval: float) -> bool:
        """Whether anything has changed since the last checkpoint, and so many seconds have passed."""
        return self._changed and time.monotonic() - self._saved_at >= interval

    def _load(self, about: About) -> None:
        state, journal = self.checkpoints.read(about)
        self.learner.load_state_dict(state)
        self.journal.load_state_dict(journal)


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


def opened(settings: Settings) -> Learner:
    """The learner of a served folder as its newest checkpoint has it, to be evaluated in Python.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> opened(check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp()))).state.t
        0.0
    """
    learner, checkpoints = build(settings), Checkpoints(settings.folder, 1, 0.0)
    if checkpoints.newest is not None:
        learner.load_state_dict(checkpoints.read(checkpoints.newest)[0])
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
