"""Running block by block: reports come one by one, and the learner is always where the last one left it."""

from __future__ import annotations

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.finite import all_finite
from hamlearn._base.interrupts import defer_sigint
from hamlearn._base.torch_private import foreach_copy_
from hamlearn.engine.blocks.scans import joined_rows, trace_of
from hamlearn.engine.eager.parts import LearnerParts
from hamlearn.engine.eager.stepping import EagerEngine
from hamlearn.engine.rates_table import RateSettings, RatesTable, Steps, one_member
from hamlearn.engine.recorded import NORM, BlockResult, Engine, Groups, ReferenceStep, UnsupportedError, Watch
from hamlearn.errors import AuditError, HamlearnError
from hamlearn.integrators import Euler
from hamlearn.sample import Sample, StepReport, Trace
from hamlearn.streams.blocks import Block, copied
from hamlearn.streams.reader import Reader, ReadPosition

logger = logging.getLogger(__name__)
FEWER = 256
"""Samples that a scan takes at once after one that had to be taken by itself; twice as many after that."""


class PendingBlock:
    """A block that has been taken, while its reports are still being handed out.

    Args:
        block: The samples.
        plan: Times and rates of the steps: `times`, `phis` and `phi(index)`, as a `RatesTable` has them.
        ran: Where they have led.
        undo: Brings everything back to before the block.
        before: How far reading had come before it.

    Attributes:
        count: Number of steps taken.
        delivered: Number of reports handed out.
    """

    def __init__(
        self, block: Block, plan: Any, ran: BlockResult, undo: Callable[[], None], before: ReadPosition
    ) -> None:
        self.block, self.plan, self.ran, self.undo, self.before = block, plan, ran, undo, before
        self.count = block.count
        self.delivered = 0

    @cached_property
    def norms(self) -> dict[str, list[float] | None]:
        """Norms of groups of the carry after each step, if they were asked for; `None` of an empty one."""
        return {
            name.removeprefix(NORM): rows[0].double().sqrt().tolist() if rows else None
            for name, rows in self.ran.kept.items()
            if name.startswith(NORM)
        }

    @cached_property
    def losses(self) -> Sequence[Tensor]:
        """Losses one by one; empty where there are none."""
        return () if self.ran.loss is None else self.ran.loss.unbind()


class ReportStack(NamedTuple):
    """Reports of consecutive steps, stacked along time.

    Attributes:
        t: Time before each step.
        y: The outputs, each leaf with time as its first axis.
        loss: The losses, any number where a sample has no target; `None` where none has.
        known: Whether each sample has a target; `None` where all have one, or none has.
    """

    t: list[float]
    y: Any
    loss: Tensor | None
    known: list[bool] | None


class BlockReport(StepReport):
    """The report of one step of a block; what it tells is looked up when it is asked for."""

    __slots__ = ("_block", "_index")

    def __init__(self, block: PendingBlock, index: int) -> None:
        self._block = block
        self._index = index

    def rest(self) -> ReportStack:
        """This report and those that follow it in its block, at once; they count as handed out.

        For consumers of all reports: one by one they cost more than small networks do.
        """
        ahead, start = self._block, self._index
        ahead.delivered = ahead.count
        ran, block = ahead.ran, ahead.block
        y = trees.unflatten([leaf[start:] for leaf in ran.y], ran.y_spec)
        loss = None if ran.loss is None or not block.target else ran.loss[start:]
        known = None if block.known is None else block.known[start:]
        return ReportStack(ahead.plan.times[start : ahead.count], y, loss, known)

    @property
    def t(self) -> float:  # type: ignore[override]
        """Time before the step."""
        return self._block.plan.times[self._index]

    @property
    def y(self) -> Any:
        """The output."""
        ran = self._block.ran
        return trees.unflatten([leaf[self._index] for leaf in ran.y], ran.y_spec)

    @property
    def loss(self) -> Tensor | None:  # type: ignore[override]
        """L(y, target)."""
        losses = self._block.losses
        return losses[self._index] if losses and self._block.block.has_target(self._index) else None

    @property
    def norms(self) -> dict[str, float | None]:
        """Norms of the carry after the step, if asked for; none at the end of a sequence, which begins again."""
        if self._block.block.ends(self._index):
            return {}
        rows = self._block.norms.items()
        return {name: None if norms is None else norms[self._index] for name, norms in rows}

    @property
    def sample(self) -> Sample:
        """The sample that was taken."""
        return self._block.block.sample(self._index)

    @property
    def skipped(self) -> bool:  # type: ignore[override]
        """Never: steps that are not finite are taken one by one."""
        return False

    @property
    def late(self) -> bool:  # type: ignore[override]
        """Never: labels are taken one by one."""
        return False

    @property
    def _phi(self) -> float:  # type: ignore[override]
        return self._block.plan.phi(self._index)

    @property
    def _coupling(self) -> Tensor | None:  # type: ignore[override]
        coupling = self._block.ran.coupling
        return None if coupling is None else coupling[self._index]


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


class StepRunner(BlockRunner):
    """Orders in which every sample is a step of its own.

    Args:
        eager: Takes single steps, and has the learner's state.
        step: Takes one sample eagerly.
    """

    def __init__(self, eager: EagerEngine, step: Callable[[Sample], Any]) -> None:
        super().__init__(eager.reader, step)
        self.eager, self.parts = eager, eager.parts
        self.engine = self.made()
        device = self.parts.system.theta[0].device
        self.engine.numbers = lambda draws, count: [row.to(device) for row in eager.random_rows(draws, count)]
        self.settings = settings_of([self.parts])

    def made(self) -> Any:
        """The engine of the order."""
        choices = self.parts.choices
        return Engine(self.parts.order, choices.reset_h == "sample", not choices.credit.clears)

    def plan(self, block: Block, learns: np.ndarray | None = None) -> RatesTable:
        """Rates and β of its steps; `learns`: where a loss enters the weights, if not at every target."""
        state, steps = self.eager.state, Steps.of(block, learns)
        return planned(self.settings, [self.parts], np.array([state.t]), np.array([state.updates]), steps)

    def undo(self) -> Undo:
        """What puts the learner back to where it is."""
        state, system = self.eager.state, self.parts.system
        if system.large:
            # Only large costates are ever written to in place.
            state = state._replace(carry=state.carry.copy())

        def put_back() -> None:
            self.eager.state = state

        return Undo([*system.theta, *(system.slots.present() if system.slots.buffers else ())], put_back)

    def take(self, block: Block, plan: RatesTable) -> tuple[BlockResult, int]:
        """All steps by one loop."""
        engine, eager, first = self.engine, self.eager, block.sample(0)
        start, fresh = self.parts.met(eager.state, first.u), block.begins(eager.state.fresh, block.count)
        reference = ReferenceStep(lambda: eager.rehearse(first), self.parts.network)
        keep = (*self.keep, *(NORM + name for name in eager.norms))
        ran = engine.run(engine.own(), start, fresh, plan.pace(), block, self.parts.watch, reference, keep)
        known = lambda: (None, known_in(block))  # noqa: E731
        return ran, good_steps(ran, block.count, self.parts.watch, self.parts.system.theta, known)

    def accept(self, block: Block, plan: RatesTable, ran: BlockResult) -> None:
        """The state after the last step; h0 again, if that ends a sequence."""
        state, last = self.eager.state, block.count - 1
        fresh, carry = block.ends(last), ran.carry
        if fresh:
            carry = self.parts.restarted(carry, block.sample(last).u)
        drawn = state.drawn + self.engine.drawn
        self.eager.state = state._replace(
            carry=carry, t=plan.times[-1], updates=plan.learned, fresh=fresh, drawn=drawn
        )


def settings_of(members: Sequence[LearnerParts], fold: Callable[..., Tensor] = one_member) -> RateSettings:
    """Hyper-parameters and β of some learners; `fold` lays members out as the engine takes them."""
    first = members[0]
    return RateSettings(
        [parts.hyper for parts in members],
        [parts.system.velocity for parts in members],
        str(first.choices.order),
        fold,
        first.system.theta[0].device,
        first.system.reads_time,
    )


def planned(
    settings: RateSettings, members: Sequence[LearnerParts], times: np.ndarray, updates: np.ndarray, steps: Steps
) -> RatesTable:
    """The rates of a block; warns if a step of the continuous clock is too long.

    Raises:
        UnsupportedError: If a schedule would have to move within the stages of an integrator.
    """
    integrator = members[0].choices.integrator
    if settings.timed and not isinstance(integrator, Euler):
        raise UnsupportedError(f"a schedule would stand still within the stages of {integrator!r}")
    table = settings.table(times, updates, steps)
    for member, parts in enumerate(members):
        if parts.hyper.clock == "continuous":
            parts.usual.overshoot.look(table.rates_of(member))
    return table


Masks = tuple[Tensor | None, Tensor | None]
"""Where marks count, and where losses count, by step and member; `None`: everywhere."""


def good_steps(
    ran: BlockResult, count: int, watch: Watch, theta: Sequence[Tensor], masks: Callable[[], Masks]
) -> int:
    """How many steps from the first one on are known to have gone well.

    Args:
        ran: What the steps led to.
        count: Number of steps.
        watch: Values that are looked at.
        theta: The weights, which are looked at after the last step only, as ω and v are.
        masks: Where marks and losses count.
    """
    good = unmarked(count, ran.mark, ran.loss if watch == "state" else None, masks)
    if watch == "state" and good == count:
        end = [*ran.carry.omega, *ran.carry.v, *theta]
        # It is not known where they overflowed: halves of halves lead to the step.
        return good if all_finite([tensor.detach() for tensor in end]) else good // 2
    return good


def known_in(block: Block) -> Tensor | None:
    """Whether each sample has a target; `None` if all have one, or none has."""
    return None if block.known is None else torch.tensor(block.known)


def unmarked(count: int, marks: Tensor | None, losses: Tensor | None, masks: Callable[[], Masks]) -> int:
    """How many of `count` steps from the first one on have no mark, and no loss that is not finite.

    Args:
        count: Number of steps.
        marks: How many entries are not finite, by step and member.
        losses: Losses by step and member.
        masks: Where marks and losses count.
    """
    marked = marks is not None and bool(marks.any())
    lost = losses is not None and not math.isfinite(losses.sum())
    if not (marked or lost):
        return count
    taking, known = masks()
    bad = torch.zeros(count, dtype=torch.bool)
    if marks is not None:
        bad |= _rows(marks != 0, taking)
    if losses is not None:
        bad |= _rows(~losses.isfinite(), known)
    return int(bad.int().argmax()) if bool(bad.any()) else count


def _rows(flags: Tensor, where: Tensor | None) -> Tensor:
    """Whether any flag of a step is set."""
    flags = flags.cpu() if where is None else flags.cpu() & where
    return flags.reshape(len(flags), -1).any(1)
