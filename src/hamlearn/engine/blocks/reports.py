"""A block that was taken, and the reports of its steps, made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.recorded import NORM, BlockResult
from hamlearn.sample import Sample, StepReport
from hamlearn.streams.blocks import Block
from hamlearn.streams.reader import Progress


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
        self, block: Block, plan: Any, ran: BlockResult, undo: Callable[[], None], before: Progress
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
