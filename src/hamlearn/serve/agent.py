"""One served learner: takes rounds of requests, tells its state, and saves itself."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hamlearn._base import trees
from hamlearn.engines.blocks.reports import BlockReport
from hamlearn.errors import HamlearnError
from hamlearn.learner import Learner
from hamlearn.sample import Id, StepReport
from hamlearn.serve.building import Engine, built, warmed
from hamlearn.serve.inbox import Inbox, Stretch
from hamlearn.serve.journal import Journal
from hamlearn.serve.settings import Settings
from hamlearn.serve.work import Work
from hamlearn.state.saving import copied_for

CHECKPOINT = "checkpoint.safetensors"

log = logging.getLogger("hamlearn.serve")


class Agent:
    """A learner, its inbox and its journal, in a folder of its own.

    All methods belong to one thread at a time, but for what `begin_save` returns.

    Args:
        settings: What it is built from.
        folder: Where its checkpoint and its records go; a checkpoint that is there is taken up.

    Attributes:
        engine: Which engine runs the learner.
        reason: Why it is not the one that was asked for; `None` where it is.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._chunk = settings.config["learner"]["chunk"]
        self._path = folder / CHECKPOINT
        every = settings.config["records"]["every"]
        self.journal = Journal(folder, settings.serve["ids"], every, settings.classes)
        self.inbox = Inbox(settings.spec, self.journal.state_dict, self.journal.load_state_dict)
        self.learner: Learner = built(settings, self.inbox)
        self.journal.begin(_norm(list(self.learner.network.parameters())))
        self.dropped = 0
        self.saved: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        self._labels = self.learner.labels
        self._last: StepReport | None = None
        self._changes = self._kept = 0
        """How often it has changed, and how many of these changes the last checkpoint holds."""
        self._saving = threading.Lock()
        """Held from the copy of what a checkpoint holds until it is written: no older one replaces a newer one."""
        self.engine: Engine = "eager"
        if not self._path.exists():
            self._open(resume=False)
            self.save()
        # What warming up changes is put back by loading, bit for bit.
        self.engine, self.reason = warmed(settings, self.learner)
        self.learner.load(self._path)
        self._open(resume=True)
        self._kept = self._changes
        self.saved = self._about(datetime.fromtimestamp(self._path.stat().st_mtime, UTC))
        self._labels = self.learner.labels

    def take(self, works: Iterable[Work]) -> None:
        """Take samples and labels in their order; what became of each is in the answers of its request."""
        rest: list[tuple[Work, int]] = []
        for work in works:
            work.begin()
            rest.append((work, 0))
        before = self.journal.samples
        while rest:
            plan, rest = self._plan(rest)
            self._run([stretch for stretch in plan if not stretch.seen])
            for stretch in plan:
                if stretch.seen:
                    self._answer_again(stretch.work, stretch.start)
        self._labels = self.learner.labels
        if self._last is not None and self.journal.due(before):
            try:
                self.journal.look(self._last, self.norms(), self.counts)
            except OSError:
                # What was learned was learned: whoever asked gets the answer, and the log says what is missing.
                log.exception("a row of the record could not be written; learning goes on")
        # It holds on to the whole block that it is part of.
        self._last = None

    def state(self) -> dict[str, Any]:
        """Where the learner stands."""
        journal, learner = self.journal, self.learner
        return {
            "position": journal.samples,
            "learned": journal.learned,
            "t": learner.state.t,
            "norms": self.norms(),
            "labels": learner.labels._asdict(),
            "late": learner.labels.late,
            "dropped": self.dropped,
            "bad": journal.bad,
            "seen": journal.seen,
            "last_id": journal.last,
            "diverging": journal.diverging,
            "resumed_at": journal.began,
            "checkpoint": self.saved,
            "order": learner.order,
            "engine": self.engine,
        }

    @property
    def counts(self) -> dict[str, int]:
        """What became of samples and labels so far; may be read by any thread."""
        journal = self.journal
        return {
            "samples": journal.samples,
            "learned": journal.learned,
            "bad": journal.bad,
            "seen": journal.seen,
            "dropped": self.dropped,
            "late": self._labels.late,
            "labels": self._labels.learned,
        }

    def norms(self) -> dict[str, float | None]:
        """Euclidean norms of h, z, ω and θ; `None` where there is none."""
        state, theta = self.learner.state, list(self.learner.network.parameters())
        parts = {"h": state.h, "z": state.z, "omega": state.omega, "theta": theta}
        return {name: None if tree is None else _norm(tree) for name, tree in parts.items()}

    def save(self) -> dict[str, Any]:
        """Write a checkpoint, and answer up to which sample it reaches."""
        return self.begin_save()()

    def begin_save(self) -> Callable[[], dict[str, Any]]:
        """Copy what a checkpoint holds; what is returned writes it, in any thread, while the learner goes on.

        It has to be called, once, and answers as `save` does. The disk may take long.
        """
        self._saving.acquire()
        try:
            self._saved_at, self.inbox.saving = time.monotonic(), True
            write = copied_for(self.learner, self._path)
            saved, changes = self._about(datetime.now(UTC)), self._changes
        except BaseException:
            self._saving.release()
            raise
        finally:
            self.inbox.saving = False

        def finish() -> dict[str, Any]:
            try:
                self.journal.sync()
                write()
                self.saved, self._kept = saved, changes
            finally:
                self._saving.release()
            return saved

        return finish

    def due(self, interval: float) -> bool:
        """Whether anything has changed since the last checkpoint, and so many seconds have gone by."""
        return self._changes > self._kept and time.monotonic() - self._saved_at >= interval

    def close(self) -> None:
        """Save what is not saved yet, and close the records."""
        try:
            if self._changes > self._kept:
                self.save()
        finally:
            self.journal.close()

    def _about(self, when: datetime) -> dict[str, Any]:
        """What is told of a checkpoint of the present state."""
        return {
            "position": self.journal.samples,
            "last_id": self.journal.last,
            "labels": self.learner.labels.learned,
            "time": when.isoformat(timespec="seconds"),
        }

    def _plan(self, rest: list[tuple[Work, int]]) -> tuple[list[Stretch], list[tuple[Work, int]]]:
        """What can be taken now, and what has to wait until it is known whether an id before was taken."""
        plan: list[Stretch] = []
        pending: set[tuple[bool, Id]] = set()
        for place, (work, first) in enumerate(rest):
            if work.ids is None:
                plan.append(Stretch(work, first, work.count))
                continue
            known = self.journal.label_ids if work.labels else self.journal.ids
            start = first
            for index in range(first, work.count):
                id = work.ids[index]
                if id is None:
                    continue
                again = (work.labels, id) in pending
                seen = not again and id in known
                by_itself = seen or work.labels or not work.has_target(index)
                if (again or by_itself) and start < index:
                    plan.append(Stretch(work, start, index))
                if again:
                    return plan, [(work, index), *rest[place + 1 :]]
                if by_itself:
                    plan.append(Stretch(work, index, index + 1, alone=not seen, seen=seen))
                    start = index + 1
                if not seen:
                    pending.add((work.labels, id))
            if start < work.count:
                plan.append(Stretch(work, start, work.count))
        return plan, []

    def _run(self, plan: list[Stretch]) -> None:
        while plan:
            left, taken = self.inbox.put(plan), 0
            try:
                for report in self.learner.run(self.inbox, left, self.engine, self._chunk):
                    if isinstance(report, BlockReport):
                        count = self._note_all(_without(plan, taken), report)
                    else:
                        first = _without(plan, taken)[0]
                        count = self._note(first.work, first.start, report)
                    taken += count
                plan = []
            except HamlearnError as error:
                self.journal.bad += 1
                first = _without(plan, taken)[0]
                first.work.note(first.start, error=str(error), learned=False)
                plan = _without(plan, taken + 1)
                # What the learner has read ahead of the failed sample is read anew.
                self.inbox.put([])
                self._open(resume=False)

    def _open(self, resume: bool) -> None:
        for _ in self.learner.run(self.inbox, 0, self.engine, self._chunk, resume=resume):
            raise AssertionError("a run of no steps has no reports")

    def _note_all(self, plan: list[Stretch], report: BlockReport) -> int:
        """Note down a report and all that follow it in its block; answers how many."""
        self._last, stack = report, report.rest()
        count = len(stack.t)
        self._changes += count
        ys, number = stack.y.tolist(), self.journal.samples
        losses: list[Any] = [None] * count if stack.loss is None else stack.loss.tolist()
        if stack.known is not None:
            losses = [loss if known else None for loss, known in zip(losses, stack.known, strict=True)]
        at = 0
        for work, start, stop, *_ in plan:
            if at == count:
                break
            stop = min(stop, start + count - at)
            end, into = at + stop - start, slice(start, stop)
            answers = work.answers
            answers["y"][into], answers["loss"][into], answers["t"][into] = (
                ys[at:end],
                losses[at:end],
                stack.t[at:end],
            )
            answers["sample"][into] = range(number + at + 1, number + end + 1)
            answers["learned"][into] = [loss is not None for loss in losses[at:end]]
            self.journal.samples_taken(losses[at:end], None if work.ids is None else work.ids[into])
            at = end
        return count

    def _note(self, work: Work, index: int, report: StepReport) -> int:
        """Note down a report of a step that was taken by itself."""
        self._changes += 1
        id = None if work.ids is None else work.ids[index]
        if work.labels:
            assert id is not None
            work.note(index, **self._label_answer(id, report))
            return 1
        self._last = report
        loss = None if report.loss is None or report.skipped else float(report.loss)
        self.journal.samples_taken([loss], None if id is None else [id])
        answer = {"y": report.y.tolist(), "loss": loss, "t": report.t, "sample": self.journal.samples}
        work.note(index, **answer, learned=loss is not None)
        if report.skipped:
            work.note(index, skipped=True)
        return 1

    def _label_answer(self, id: Id, report: StepReport) -> dict[str, Any]:
        late = report.sample is None
        if not late:
            self.journal.label_ids.add(id)
        learned = not late and not report.skipped
        loss = float(report.loss) if learned and report.loss is not None else None
        return {"id": id, "loss": loss, "learned": learned, "late": late}

    def _answer_again(self, work: Work, index: int) -> None:
        """Nothing is learned from what was seen before; a sample gets the answer of the present weights."""
        self.journal.seen += 1
        self._changes += 1
        if work.labels:
            assert work.ids is not None
            work.note(index, id=work.ids[index], learned=False, late=False, seen=True)
            return
        assert work.u is not None
        tau = None if work.tau is None else work.tau[index]
        y = self.learner.predict(torch.tensor(work.u[index]), tau)
        work.note(index, y=y.tolist(), t=self.learner.state.t, learned=False, seen=True)


def _without(plan: list[Stretch], count: int) -> list[Stretch]:
    """The plan without its first so many samples."""
    if not count:
        return plan
    rest: list[Stretch] = []
    for stretch in plan:
        gone = min(count, stretch.stop - stretch.start)
        count -= gone
        if stretch.start + gone < stretch.stop:
            rest.append(stretch._replace(start=stretch.start + gone))
    return rest


def _norm(tree: Any) -> float:
    leaves, _ = trees.flatten(tree)
    return math.hypot(*(float(torch.linalg.vector_norm(leaf.detach())) for leaf in leaves))
