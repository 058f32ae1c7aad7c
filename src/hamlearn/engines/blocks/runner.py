"""Running block by block: reports come one by one, and the learner is always where the last one left it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import torch

from hamlearn._base.slots import put
from hamlearn.engines.blocks.reports import Ahead, BlockReport, Plan
from hamlearn.engines.eager.commit import keeps_mode
from hamlearn.engines.eager.stepping import Stepper
from hamlearn.engines.recorded import Ran, UnsupportedError
from hamlearn.errors import AuditError, HamlearnError
from hamlearn.sample import Sample
from hamlearn.state.undo import Undo
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader

T = TypeVar("T")
P = TypeVar("P", bound=Plan)
FEWER = 256
"""Samples that are taken at once after one that had to be taken by itself; twice as many after that."""


class BlockRunner(ABC):
    """Takes blocks of samples by a compiled engine.

    Args:
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.
    """

    shown_by = "learner.network"
    """What to read in order to be where the last report says."""

    def __init__(self, reader: Reader, step: Callable[[Sample], Any]) -> None:
        self.reader = reader
        self.step = step
        self.ahead: Ahead | None = None
        self.repair: Callable[[], None] | None = None
        self.again = False

    def reports(self, stream: Iterable[Sample], max_steps: int | None, resume: bool, chunk: int) -> Iterator[Any]:
        """Yield a report for each sample of the stream."""
        reader = self.reader
        self.settle()
        turn = reader.open_blocks(stream, resume)
        done, since, size, alone, compiles = 0, 0, chunk, False, True
        try:
            while max_steps is None or done < max_steps:
                reader.check_turn(turn)
                block = reader.peek(min(size if compiles else 1, chunk if max_steps is None else max_steps - done))
                if block is None:
                    reader.end(self.pending())
                    return
                ahead = reason = None
                if compiles and not alone and block.u is not None:
                    self._recall(False)
                    try:
                        ahead = self.run(block)
                    except UnsupportedError as error:
                        self.make_whole()
                        reason = error
                if ahead is None:
                    # A sample that a block cannot go beyond is taken as any other, and says itself what is wrong.
                    report = reader.counted(self.step, block.sample(0))
                    done, alone = done + 1, False
                    if reason is not None:
                        tell_eager(reason)
                        compiles = False
                    yield report
                    continue
                self.ahead = ahead
                self.repair = None
                row = self.row
                try:
                    while ahead.delivered < ahead.count:
                        ahead.delivered += 1
                        yield row(ahead, ahead.delivered - 1)
                        if ahead.settled:
                            break
                finally:
                    self._back()
                if not ahead.settled and ahead.count > 1:
                    # After a block of one sample, a change holds from the next sample on as it is.
                    tell_changes(ahead.ran, self.shown_by)
                done += ahead.delivered
                since += ahead.delivered
                if ahead.asked:
                    # Whoever looks at the learner every so often will look again: the next block ends there.
                    size, since = min(since, chunk), 0
                else:
                    size = min(2 * size, chunk)
                alone = ahead.stops
        finally:
            reader.close(turn)

    def whole(
        self,
        block: Block,
        keep: Callable[[], Callable[[], None]],
        told: Callable[[list[Ahead | Any]], T],
    ) -> T:
        """Take all samples of a block; or none, if one of them is refused or an interrupt strikes.

        Args:
            block: The samples.
            keep: Returns what puts the learner back to where it is, whatever steps it takes.
            told: What to return, made of blocks and of the reports of samples that had to be taken by themselves.
        """
        taken: list[Ahead | Any] = []
        start, size, alone, compiles = 0, block.count, False, True
        undo: Callable[[], None] | None = None
        back: Callable[[], None] | None = None
        try:
            while start < block.count:
                ahead = None
                if compiles and not alone:
                    self._recall(False)
                    try:
                        ahead = self.run(block.part(start, min(start + size, block.count)))
                    except UnsupportedError as error:
                        self.make_whole()
                        compiles = False
                        tell_eager(error)
                if ahead is None:
                    if undo is None and back is None:
                        back = keep()
                    # In memory of its own: kernels round by alignment, and a row lies wherever it lies.
                    taken.append(self.step(copied(block.sample(start))))
                    start, size, alone = start + 1, FEWER, False
                    continue
                if undo is None and back is None:
                    undo = ahead.undo
                self.repair = None
                taken.append(ahead)
                start, size, alone = start + ahead.count, 2 * size, ahead.stops
            return told(taken)
        except BaseException as error:
            self.make_whole()
            if undo is not None:
                self.repair = undo
                self.make_whole()
            elif back is not None:
                back()
            if block.count > 1 and isinstance(error, HamlearnError):
                error.add_note(f"This was step {start} of {block.count} of a scan(), of which none was made.")
            raise

    def settle(self) -> None:
        """Bring the learner to the last report that was handed out, since somebody asks for it."""
        self.make_whole()
        if self.ahead is not None:
            self.ahead.asked = True
            self._back()

    def _back(self) -> None:
        self.count()
        ahead = self.ahead
        if ahead is not None and ahead.delivered < ahead.count:
            # Interrupted within, it begins anew the next time.
            ahead.settled = True
            with usual_modes():
                ahead.undo()
                if ahead.delivered:
                    self._recall(True)
                    self.run(ahead.block.part(0, ahead.delivered))
                    self.repair = None
        self.ahead = None

    def _recall(self, again: bool) -> None:
        """Say whether samples are taken once more, as they were at first, whatever has been changed since."""
        self.again = again

    def make_whole(self) -> None:
        """Undo a block that was interrupted before it was done."""
        repair = self.repair
        if repair is not None:
            repair()
            self.repair = None

    def shorter(self, block: Block, good: int) -> Ahead | None:
        """Undo a block that went wrong after `good` of its steps, and take those; the next comes alone."""
        self.make_whole()
        ahead = self.run(block.part(0, good)) if good else None
        if ahead is not None:
            ahead.stops = True
        return ahead

    @abstractmethod
    def run(self, block: Block) -> Ahead | None:
        """Take as much of the block as goes well, at once; `None` where its first sample does not.

        Until the caller has noted down what it answers, `repair` undoes it.
        """

    def pending(self) -> int:
        """How many tokens wait for the end of their sequence; none where every sample is learned from at once."""
        return 0

    def row(self, ahead: Ahead, index: int) -> Any:
        """The report of a step."""
        return BlockReport(ahead, index)

    def hand_over(self) -> None:
        """Give what this runner keeps for itself back to the order, for the eager engine or a checkpoint."""

    def forget(self) -> None:
        """Drop what this runner keeps for itself."""

    def recompile(self) -> None:
        """Record the step again at the next block; what is not recorded has nothing to forget."""

    def count(self) -> None:
        """Tell the reader how many samples have been taken, as far as reports have been handed out."""
        ahead = self.ahead
        if ahead is not None:
            ends = ahead.block.boundary
            self.reader.progress = ahead.before.after(
                ahead.delivered, None if ends is None else ends[: ahead.delivered]
            )


class PlannedRunner(BlockRunner, Generic[P]):
    """Plans the rates of a block, takes it, and looks how far that went well."""

    engine: Any

    def _recall(self, again: bool) -> None:
        self.again = again
        self.engine.steps.pin(again)

    def recompile(self) -> None:
        """Record the step again at the next block."""
        self.engine.steps.clear()

    @keeps_mode
    def run(self, block: Block) -> Ahead | None:
        """Take as much of the block as goes well, at once; `None` where its first sample does not."""
        plan = self.plan(block)
        if plan is None or plan.count == 0:
            return None
        block = block.part(0, plan.count)
        self.repair = undo = self.undo()
        try:
            ran, good = self.take(block, plan, undo)
        except AuditError:
            raise
        except HamlearnError:
            good = 0
        if good < block.count:
            return self.shorter(block, good)
        self.accept(block, plan, ran)
        return Ahead(block, plan, ran, undo, self.reader.progress)

    @abstractmethod
    def plan(self, block: Block) -> P | None:
        """Times and rates of its steps; `None` where they cannot be taken at once yet."""

    @abstractmethod
    def undo(self) -> Callable[[], None]:
        """What brings everything back to where it is."""

    @abstractmethod
    def take(self, block: Block, plan: P, undo: Callable[[], None]) -> tuple[Ran, int]:
        """Make the steps, and tell how many of them went well from the first one on."""

    @abstractmethod
    def accept(self, block: Block, plan: P, ran: Ran) -> None:
        """Note down where these steps have led."""


@contextmanager
def usual_modes() -> Iterator[None]:
    """Within, PyTorch is in its usual modes: a learner may be looked at in others."""
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


def tell_eager(reason: object, frames: int = 1) -> None:
    """Say why steps are made one by one, to whoever asked for them: `frames` above the caller."""
    text = f"engine='compiled' falls back to the eager engine: {reason}"
    warnings.warn(text, RuntimeWarning, stacklevel=frames + 2)


def tell_changes(ran: Ran, whole: str) -> None:
    """Say what the recording of a block has read that changed while its reports were read.

    Args:
        ran: The block.
        whole: What to read in order to be where the last report says.
    """
    changed = ran.guards.changed()
    if changed is not None:
        warnings.warn(
            f"{changed} changed while the reports of a block were read: with engine='compiled' the change "
            f"holds from the next block on. Read {whole} before you change it, or use engine='eager', to have it "
            "hold from the next sample on",
            RuntimeWarning,
            stacklevel=3,
        )


def undo_of(stepper: Stepper) -> Undo:
    """What puts a learner back to where it is."""
    slots = stepper.parts.system.slots
    state = stepper.state._replace(carry=stepper.state.carry.copy())
    buffers = slots.held()

    def put_back() -> None:
        stepper.state = state
        # A step that was taken by itself may have put other tensors there.
        put(buffers)

    return Undo([*stepper.parts.system.theta, *slots.present()], put_back)
