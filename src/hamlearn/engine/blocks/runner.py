"""Running block by block: reports come one by one, and the learner is always where the last one left it."""

from __future__ import annotations

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engine.blocks.reports import BlockReport, PendingBlock
from hamlearn.engine.blocks.scans import joined_rows, trace_of
from hamlearn.engine.recorded import BlockResult, Groups, UnsupportedError
from hamlearn.errors import AuditError, HamlearnError
from hamlearn.sample import Sample, Trace
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader

logger = logging.getLogger(__name__)
FEWER = 256
"""Samples that a scan takes at once after one that had to be taken by itself; twice as many after that."""


class Undo:
    """Puts back what a block changes, as often as it is called.

    Args:
        tensors: What the block writes to in place.
        put: Puts back what it replaces.
    """

    def __init__(self, tensors: Sequence[Tensor], put: Callable[[], None]) -> None:
        self.tensors, self.put = [tensor.detach() for tensor in tensors], put
        self.copies = [tensor.clone() for tensor in self.tensors]

    def __call__(self) -> None:
        """Put it back."""
        self.put()
        if self.tensors:  # PyTorch raises for empty lists.
            with torch.no_grad():
                foreach_copy_(self.tensors, self.copies)


class BlockRunner(ABC):
    """Takes blocks of samples by a compiled engine.

    A block is taken as a whole, and its reports are handed out afterwards. If the learner is asked for anything in
    between, the snapshot from before the block is restored, and the samples reported so far are taken once more,
    by the same recorded steps: the answer is that of the last report. In the same way the steps before one that
    goes wrong are taken, which is then left to the eager engine.

    Args:
        reader: Reads the stream and keeps count.
        step: Takes one sample eagerly.

    Attributes:
        engine: Runs the recorded steps.
        ahead: The block whose reports are being handed out.
        again: Whether a block is being taken once more.
        quiet: Whether a step that cannot be compiled is said in the log, not by a warning.
        singly: Whether samples are taken one by one all the same.
        keep: Tensors of the carry that a scan keeps for every step.
        refused: Why the step cannot be compiled, from then on to the end of the run.
    """

    engine: Any

    def __init__(self, reader: Reader, step: Callable[[Sample], Any]) -> None:
        self.reader, self.step = reader, step
        self.ahead: PendingBlock | None = None
        self.again = self.quiet = self.singly = False
        self.keep: tuple[str, ...] = ()
        self.refused: UnsupportedError | None = None

    @abstractmethod
    def plan(self, block: Block) -> Any:
        """Times and rates of its steps, as a `Plan`; `None` if they cannot be taken at once yet."""

    @abstractmethod
    def undo(self) -> Callable[[], None]:
        """A snapshot: what brings everything back to where it is, as often as it is called."""

    @abstractmethod
    def take(self, block: Block, plan: Any) -> tuple[BlockResult, int]:
        """Make the steps, and say how many of them went well from the first one on."""

    @abstractmethod
    def accept(self, block: Block, plan: Any, ran: BlockResult) -> None:
        """Note down where these steps have led."""

    def row(self, ahead: PendingBlock, index: int) -> Any:
        """The report of a step."""
        return BlockReport(ahead, index)

    def pending(self) -> int:
        """How many tokens wait for the end of their sequence; none if every sample is learned from at once."""
        return 0

    def recompile(self) -> None:
        """Record the step again at the next block."""
        self.engine.steps.clear()

    def reports(self, stream: Iterable[Sample], max_steps: int | None, resume: bool, chunk: int) -> Iterator[Any]:
        """Yield a report for each sample of the stream."""
        reader, left = self.reader, math.inf if max_steps is None else max_steps
        self.settle()
        turn, size, since, self.refused = reader.open_blocks(stream, resume), chunk, 0, None
        try:
            while left > 0:
                reader.check_turn(turn)
                block = reader.peek(int(min(1 if self.singly or self.refused else size, left)))
                if block is None:
                    reader.end(self.pending())
                    return
                ahead = self._taken(block)
                if ahead is None:
                    # A sample that a block cannot go beyond is taken as any other, and says itself what is wrong.
                    left -= 1
                    yield reader.counted(self.step, block.sample(0))
                    continue
                try:
                    # A look at the learner settles the block, whose other samples are then read again.
                    while self.ahead is ahead and ahead.delivered < ahead.count:
                        ahead.delivered += 1
                        yield self.row(ahead, ahead.delivered - 1)
                finally:
                    looked_at = self.ahead is not ahead
                    if not looked_at:
                        self._back()
                left, since = left - ahead.delivered, since + ahead.delivered
                # A user who looks at the learner every so often will look again: the next block ends there.
                size, since = (min(since, chunk), 0) if looked_at else (min(2 * size, chunk), since)
        finally:
            reader.close(turn)

    def whole(
        self,
        block: Block,
        save: Callable[[], Callable[[], None]],
        like: Tensor,
        keep: tuple[str, ...],
        present: Callable[[str], list[Tensor]],
    ) -> tuple[Trace, Groups]:
        """Take all samples of a block; or none, if one of them raises or an interrupt strikes.

        Args:
            block: The samples.
            save: Returns what puts the learner back to where it is, whatever steps it takes.
            like: A weight.
            keep: Names of tensors that are kept for every step besides.
            present: The tensors of such a name as the last eager step left them.

        Returns:
            The trace, and what was kept, one row per step.
        """
        taken: list[PendingBlock | Any] = []
        kept: list[Groups] = []
        self.keep = keep
        start, size, self.refused = 0, block.count, None
        back: Callable[[], None] | None = None
        try:
            while start < block.count:
                ahead = self._taken(block.part(start, min(start + size, block.count)))
                if ahead is not None:
                    self.ahead, back = None, back or ahead.undo
                    taken.append(ahead)
                    kept.append(ahead.ran.kept)
                    start, size = start + ahead.count, 2 * size
                    continue
                back = back or save()
                # In memory of its own: kernels round by alignment, and a row lies wherever it lies.
                taken.append(self.step(copied(block.sample(start))))
                kept.append({name: [x.detach().clone()[None] for x in present(name)] for name in keep})
                start, size = start + 1, FEWER
            trace = trace_of(taken, like)
            return trace, {name: joined_rows([one[name] for one in kept]) for name in keep}
        except BaseException as error:
            self._back()
            if back is not None:
                back()
            if block.count > 1 and isinstance(error, HamlearnError):
                error.add_note(f"This was step {start} of {block.count} of a scan(), of which none was made.")
            raise
        finally:
            self.keep = ()

    def _taken(self, block: Block) -> PendingBlock | None:
        """The block as far as it goes well; `None` if its first sample has to be taken by itself."""
        if block.u is None or self.singly or self.refused is not None:
            return None
        try:
            return self.run(block)
        except UnsupportedError as error:
            self.refused = error
            say_eager(error, frames=2, quiet=self.quiet)
            return None

    def run(self, block: Block) -> PendingBlock | None:
        """Take as much of the block as goes well, as `ahead`; `None`, with nothing changed, if that is nothing."""
        self.engine.steps.pin(self.again)
        plan = self.plan(block)
        if plan is None or plan.count == 0:
            return None
        block, undo, mode, good = block.part(0, plan.count), self.undo(), torch.is_grad_enabled(), 0
        try:
            with defer_sigint():
                try:
                    ran, good = self.take(block, plan)
                except (UnsupportedError, AuditError):
                    raise
                except HamlearnError:
                    pass  # The eager engine raises it for the sample that it is about.
                if good == block.count:
                    self.accept(block, plan, ran)
                    self.ahead = PendingBlock(block, plan, ran, undo, self.reader.progress)
                    return self.ahead
        except BaseException:
            self.ahead = None
            undo()
            raise
        finally:
            torch.set_grad_enabled(mode)
        undo()
        return self.run(block.part(0, good)) if good else None

    def settle(self) -> None:
        """Bring the learner to the last report that was handed out, since the user asks for it."""
        if self.ahead is not None:
            self._back()

    def _back(self) -> None:
        """Be where the last report says: the snapshot, and the samples reported since once more."""
        self.count()
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead.delivered == ahead.count:
            return
        with usual_modes(), defer_sigint():
            ahead.undo()
            if ahead.delivered:
                self.again = True
                try:
                    self.run(ahead.block.part(0, ahead.delivered))
                finally:
                    self.again, self.ahead = False, None
                    self.engine.steps.pin(False)

    def count(self) -> None:
        """Tell the reader how many samples have been taken, as far as reports have been handed out."""
        ahead = self.ahead
        if ahead is not None:
            ends, done = ahead.block.boundary, ahead.delivered
            self.reader.progress = ahead.before.after(done, None if ends is None else ends[:done])


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


def say_eager(reason: object, frames: int = 1, *, quiet: bool = False) -> None:
    """Say that steps are made one by one, and why.

    Args:
        reason: Why the step cannot be compiled.
        frames: How many frames above the caller the warning points to.
        quiet: Whether the user has left the choice of the engine to the library.
    """
    if quiet:
        logger.info("engine='auto' uses the eager engine: %s", reason)
        return
    text = f"engine='compiled' falls back to the eager engine: {reason}"
    warnings.warn(text, RuntimeWarning, stacklevel=frames + 2)
