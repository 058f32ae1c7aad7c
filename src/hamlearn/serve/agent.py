"""One served learner: takes rounds of requests, describes its state, and saves itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hamlearn.errors import HamlearnError
from hamlearn.experiments.run.build import build_learner, build_network
from hamlearn.learner import Learner
from hamlearn.sample import Id, Label, Sample, Trace
from hamlearn.serve.batch import Batch
from hamlearn.serve.checkpoints import About, Checkpoints
from hamlearn.serve.journal import Journal
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings


class Rows(NamedTuple):
    """Samples one after another, as columns of the same length."""

    u: np.ndarray
    target: np.ndarray
    known: np.ndarray
    tau: np.ndarray
    boundary: np.ndarray

    def cut(self, start: int, stop: int) -> Rows:
        """Some of them."""
        return Rows._make(column[start:stop] for column in self)


Part = tuple[Batch, int, int]
"""Samples `start` to `stop` of a batch."""


class Agent:
    """A learner with its journal and its checkpoints, in a folder of its own.

    All methods but the function that `copy` returns must be called by one thread at a time.

    Args:
        settings: What it is built from.
        folder: Of its checkpoints and records. It continues from the newest checkpoint there.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        serve = settings.serve
        self._settings = settings
        self.journal = Journal(
            folder,
            serve["ids"],
            settings.config["records"]["every"],
            (settings.inputs, settings.outputs),
            serve["clip"],
            settings.classes,
        )
        self.checkpoints = Checkpoints(folder, serve["keep"], serve["keep_apart"])
        self.learner = _built(settings)
        self._tau: Any = self.learner.hyper.tau
        self._hamiltonian = 0.0
        self._changes = self._kept = 0
        """How often it has changed, and how many of these changes the last checkpoint holds."""
        self._saved_at = time.monotonic()
        newest = self.checkpoints.newest
        if newest is not None:
            self._load(newest.number)
        _compile_step(settings, self.learner)
        self._labels = self.learner.labels
        if newest is None:
            self.copy()()

    def take(self, batches: Iterable[Batch]) -> None:
        """Take samples and labels in their order; what became of each is noted in its batch."""
        before = self.journal.samples
        waiting: list[Part] = []
        for batch in batches:
            batch.answers = [{} for _ in range(batch.count)]
            if batch.kind == "samples":
                self._plan(batch, waiting)
                continue
            self._flush(waiting)
            for index in range(batch.count):
                (self._label if batch.kind == "labels" else self._evaluate)(batch, index)
        self._flush(waiting)
        self._labels = self.learner.labels
        if self.journal.due(before):
            self.journal.write_row(self.learner.state.t, self._hamiltonian, self.norms())

    def _plan(self, batch: Batch, waiting: list[Part]) -> None:
        """Put samples where they wait to be taken as one block, and take those by themselves that need it."""
        start = 0
        pending = {id for part, first, stop in waiting for id in part.ids[first:stop]} - {None}
        for index, id in enumerate(batch.ids):
            if id is None:
                continue
            if id in pending:
                # Whether the sample under the same id was learned, or refused, is known once its block was taken.
                waiting.append((batch, start, index))
                self._flush(waiting)
                start, pending = index, set()
            seen = id in self.journal.ids
            if seen or not batch.known[index]:
                waiting.append((batch, start, index))
                self._flush(waiting)
                (self._answer_again if seen else self._wait_for_label)(batch, index)
                start = index + 1
            else:
                pending.add(id)
        waiting.append((batch, start, batch.count))

    def _flush(self, waiting: list[Part]) -> None:
        """Take the samples that wait as one block, and note what became of each."""
        places = [(batch, index) for batch, start, stop in waiting for index in range(start, stop)]
        parts = [(batch, slice(start, stop)) for batch, start, stop in waiting if start < stop]
        waiting.clear()
        if not places:
            return
        names = Rows._fields
        if len(parts) == 1:
            rows = Rows._make(getattr(parts[0][0], name)[parts[0][1]] for name in names)
        else:
            rows = Rows._make(
                np.concatenate([getattr(batch, name)[cut] for batch, cut in parts]) for name in names
            )
        u, clipped = self.journal.u.clip(rows.u, self.journal.samples)
        target, more = self._clipped(rows.target)
        for index in {*clipped, *more}:
            self.journal.clipped += 1
            places[index][0].answers[places[index][1]]["clipped"] = True
        self._learn(rows._replace(u=u, target=target), places)

    def _clipped(self, target: np.ndarray) -> tuple[np.ndarray, list[int]]:
        # Numbers of classes are in their bounds already.
        return self.journal.target.clip(target, self.journal.samples) if target.dtype.kind == "f" else (target, [])

    def _learn(self, rows: Rows, places: list[tuple[Batch, int]]) -> None:
        """Learn rows as one block. If one of them is refused, each half is learned by itself, to find which."""
        count = len(places)
        try:
            trace = self._scan(rows)
        except HamlearnError as error:
            if count > 1:
                self._learn(rows.cut(0, count // 2), places[: count // 2])
                self._learn(rows.cut(count // 2, count), places[count // 2 :])
            else:
                self._refuse(*places[0], error)
            return
        y, first = trace.y.numpy(), self.journal.samples + 1
        known = rows.known & ~trace.skipped.numpy()
        losses = [None] * count if trace.loss is None else trace.loss.tolist()
        found = [loss if one else None for loss, one in zip(losses, known.tolist(), strict=True)]
        self._hamiltonian = float(trace.hamiltonian[-1])
        self._note_taken(found, [batch.ids[index] for batch, index in places])
        if known.any():
            kept = [loss for loss in found if loss is not None]
            self.journal.scores.add(self.journal.samples, y[known], rows.target[known], kept)
        for (batch, index), number, answer, loss, t in zip(
            places, range(first, first + count), self._unscaled(y), found, trace.t.tolist(), strict=True
        ):
            taken = {"y": answer, "loss": loss, "t": t, "sample": number, "learned": loss is not None}
            batch.answers[index] = taken | batch.answers[index]
        for number in trace.skipped.nonzero().flatten().tolist():
            batch, index = places[number]
            batch.answers[index]["skipped"] = True

    def _scan(self, rows: Rows) -> Trace:
        """Take rows in one call of the learner; columns that say nothing are left out."""
        has_tau, known = ~np.isnan(rows.tau), rows.known
        return self.learner.scan(
            torch.from_numpy(rows.u),
            torch.from_numpy(rows.target) if known.any() else None,
            np.where(has_tau, rows.tau, self._tau) if has_tau.any() else None,
            rows.boundary if rows.boundary.any() else None,
            known=known if known.any() and not known.all() else None,
        )

    def _note_taken(self, losses: list[float | None], ids: list[Id | None]) -> None:
        self.journal.take(losses, ids)
        self._changes += len(losses)

    def _unscaled(self, y: Any) -> list[Any]:
        """Predictions in the unit of the data."""
        if self._settings.scale is not None:
            mean, spread = self._settings.scale
            y = np.asarray(y, np.float64) * spread + mean
        found: list[Any] = y.tolist()
        return found

    def _refuse(self, batch: Batch, index: int, error: Exception) -> None:
        self.journal.bad += 1
        self.journal.scores.refused(self.journal.samples)
        batch.answers[index] |= {"error": str(error), "learned": False}

    def _wait_for_label(self, batch: Batch, index: int) -> None:
        """Take a sample whose label is to come later."""
        (u,), clipped = self.journal.u.clip(batch.u[index : index + 1], self.journal.samples)
        sample = Sample(torch.tensor(u), None, _tau(batch, index), bool(batch.boundary[index]), batch.ids[index])
        try:
            report = self.learner.step(sample)
        except HamlearnError as error:
            self._refuse(batch, index, error)
            return
        self._note_taken([None], [batch.ids[index]])
        answer = {"y": self._unscaled(report.y), "loss": None, "t": report.t, "sample": self.journal.samples}
        batch.answers[index] = answer | {"learned": False} | ({"clipped": True} if clipped else {})
        self.journal.clipped += len(clipped)

    def _label(self, batch: Batch, index: int) -> None:
        """Learn a label with the sample that waits for it."""
        id = batch.ids[index]
        assert id is not None
        answer: dict[str, Any] = {"id": id, "loss": None, "learned": False, "late": False}
        batch.answers[index] = answer
        self._changes += 1
        if id in self.journal.label_ids:
            self.journal.seen += 1
            answer["seen"] = True
            return
        (target,), clipped = self._clipped(batch.target[index : index + 1])
        self.journal.clipped += len(clipped)
        try:
            report = self.learner.step(Label(id, torch.as_tensor(target)))
        except HamlearnError as error:
            self._refuse(batch, index, error)
            return
        answer["late"] = report.sample is None
        if report.sample is not None:
            self.journal.label_ids.add(id)
            answer |= {"learned": not report.skipped, "loss": None if report.loss is None else float(report.loss)}

    def _answer_again(self, batch: Batch, index: int) -> None:
        """Answer a sample that was taken before by the present weights; nothing is learned."""
        self.journal.seen += 1
        self._changes += 1
        y = self.learner.predict(torch.tensor(batch.u[index]), _tau(batch, index))
        answer = {"y": self._unscaled(y), "loss": None, "t": self.learner.state.t, "sample": None}
        batch.answers[index] = answer | {"learned": False, "seen": True}

    def _evaluate(self, batch: Batch, index: int) -> None:
        """Predict a sample from the present state and weights, and compute its loss; nothing moves."""
        y = self.learner.predict(torch.tensor(batch.u[index]), _tau(batch, index))
        loss = float(self.learner.loss(y, torch.as_tensor(batch.target[index]))) if batch.known[index] else None
        batch.answers[index] = {"y": self._unscaled(y), "loss": loss}

    def state(self) -> dict[str, Any]:
        """Where the learner stands, as JSON."""
        journal, newest = self.journal, self.checkpoints.newest
        return {
            "position": journal.samples,
            **self.counts,
            "t": self.learner.state.t,
            "norms": self.norms(),
            "last_id": journal.last,
            "diverging": journal.scores.diverging,
            "scores": journal.scores.read(),
            "resumed_at": journal.resumed,
            "checkpoint": None if newest is None else newest._asdict(),
        }

    @property
    def counts(self) -> dict[str, Any]:
        """What became of samples and labels so far; any thread may read it."""
        names = ("samples", "learned", "bad", "seen", "clipped")
        counts = {name: getattr(self.journal, name) for name in names}
        return counts | {
            "labels": self._labels.learned,
            "late": self._labels.late,
            "waiting": self._labels.waiting,
        }

    def norms(self) -> dict[str, float | None]:
        """Euclidean norms of h, z, ω and θ; `None` if there is none."""
        state, theta = self.learner.state, list(self.learner.network.parameters())
        parts = {"h": state.h, "z": state.z, "omega": state.omega, "theta": theta}
        return {name: None if tree is None else math.hypot(*_norms(tree)) for name, tree in parts.items()}

    def copy(self, *, pinned: bool = False) -> Callable[[], About]:
        """Copy what a checkpoint holds; the function returned writes the copy, in any thread."""
        self._saved_at, changes, journal = time.monotonic(), self._changes, self.journal
        state, told = self.learner.state_dict(), journal.state_dict()
        when = datetime.now(UTC).isoformat(timespec="seconds")
        about = About(0, journal.samples, journal.last, when, pinned, journal.scores.diverging)

        def write() -> About:
            self.checkpoints.write(about, state, told)
            self._kept = max(self._kept, changes)
            assert self.checkpoints.newest is not None
            return self.checkpoints.newest

        return write

    def roll_back(self, number: int | None) -> Callable[[], About]:
        """Become what a checkpoint holds; returns what writes this state as the newest checkpoint.

        Args:
            number: Of the checkpoint; `None`: the last one before the newest that was taken in good health.
        """
        known = [about.number for about in self.checkpoints.known]
        if number is None:
            found = self.checkpoints.healthy_before()
            number = None if found is None else found.number
        if number not in known or number is None:
            raise Refused(
                404, f"there is no checkpoint {number} to return to. Kept are {known}; see GET /checkpoints."
            )
        self._load(number)
        self._changes += 1
        return self.copy(pinned=True)

    def due(self, interval: float) -> bool:
        """Whether anything has changed since the last checkpoint, and so many seconds have passed."""
        return self._changes > self._kept and time.monotonic() - self._saved_at >= interval

    def _load(self, number: int) -> None:
        state, journal = self.checkpoints.read(number)
        self.learner.load_state_dict(state)
        self.journal.load_state_dict(journal)


def _tau(batch: Batch, index: int) -> float | None:
    return None if np.isnan(batch.tau[index]) else float(batch.tau[index])


def _norms(tree: Any) -> list[float]:
    if isinstance(tree, torch.Tensor):
        return [float(torch.linalg.vector_norm(tree.detach()))]
    leaves = tree.values() if isinstance(tree, dict) else tree
    return [norm for leaf in leaves for norm in _norms(leaf)]


def opened(settings: Settings) -> Learner:
    """The learner of a served folder as its newest checkpoint has it, to be evaluated in Python.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hamlearn.serve import check
        >>> opened(check({"network": {"inputs": 2, "outputs": 1}}, Path(tempfile.mkdtemp()))).state.t
        0.0
    """
    learner, checkpoints = _built(settings), Checkpoints(settings.folder, 1, 0.0)
    if checkpoints.newest is not None:
        learner.load_state_dict(checkpoints.read(checkpoints.newest.number)[0])
    return learner


class _Sized:
    """What `build_network` asks of a stream: its spec."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def _built(settings: Settings) -> Learner:
    """A learner as the configuration says, with the weights of the seed, or of the run that is served."""
    run, before = settings.run, torch.get_default_dtype()
    with torch.random.fork_rng():
        torch.manual_seed(settings.config["run"]["seed"])
        try:
            torch.set_default_dtype(settings.dtype)
            sized: Any = _Sized(settings.spec) if run is None else run.stream
            network = build_network(settings.config, sized, settings.classes)
            learner = build_learner(settings.config, network, late=settings.serve["late"])
        finally:
            torch.set_default_dtype(before)
    if run is not None:
        learner.load_state_dict(run.learner.state_dict())
    return learner


def _compile_step(settings: Settings, learner: Learner) -> None:
    """Let the learner take two samples, so that its step is compiled, and put it back."""
    state = learner.state_dict()
    u = torch.zeros(2, settings.inputs, dtype=settings.dtype)
    target = torch.zeros(2, settings.outputs, dtype=settings.dtype)
    try:
        learner.scan(u, target if settings.classes is None else torch.zeros(2, dtype=torch.int64))
    finally:
        learner.load_state_dict(state)
