"""What one step of a population yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import SampleError
from hamlearn.sample import Sample, StepReport


class PopulationReport:
    """What one step of all members yields: the next sample of each, of one stream or of one each.

    A member whose stream has ended, or that was frozen, rests. Its values, and the loss of a sample without
    target, are NaN, and 0 in outputs of whole numbers.

    Attributes:
        took: Which members took a sample.
        t: Time of each member at which its sample was taken.
        y: The outputs; each tensor has the members as its first axis.
        loss: L(y, target) of each member; `None` if no member has one.
        hamiltonian: H of each member.
        samples: The sample of each member; `None` for one that rests.
        sample: The sample of the first member that took one: that of all, if they share a stream.
        skipped: Which members undid the step because a value was not finite.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> population = hl.Population(make, [hl.Hyper()], seeds=[0, 1, 2])
        >>> (report,) = population.run([hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1))])
        >>> len(report), report.loss.shape, report.y.shape, report[2].t
        (3, torch.Size([3]), torch.Size([3, 1, 1]), 0.0)
        >>> feeds = [[hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1))] * length for length in (1, 2)]
        >>> agents = hl.Population(make, [hl.Hyper()], seeds=[0, 1], streams=feeds)
        >>> first, second = agents.run()
        >>> first.took, second.took, second[0] is None, second.loss.isnan().tolist()
        ([True, True], [False, True], True, [True, False])
    """

    __slots__ = ("_reports",)

    def __init__(self, reports: Sequence[StepReport | None]) -> None:
        self._reports = reports

    @property
    def took(self) -> list[bool]:
        """Which members took a sample."""
        return [report is not None for report in self]

    @property
    def t(self) -> list[float]:
        """Times of the members."""
        return [float("nan") if report is None else report.t for report in self]

    @property
    def samples(self) -> list[Sample | None]:
        """Samples of the members."""
        return [None if report is None else report.sample for report in self]

    @property
    def sample(self) -> Sample | None:
        """The sample that members share."""
        return next((report.sample for report in self if report is not None), None)

    @property
    def skipped(self) -> list[bool]:
        """Which members skipped their sample."""
        return [report is not None and report.skipped for report in self]

    @property
    def y(self) -> Any:
        """Outputs of the members."""
        outputs = [None if report is None else trees.flatten(report.y) for report in self]
        there = [output for output in outputs if output is not None]
        if not there:
            return None
        leaves, spec = there[0]
        if any(other != spec for _, other in there):
            raise SampleError("the outputs of the members differ in structure: read report[number].y one by one")
        rows = [[None] * len(leaves) if output is None else output[0] for output in outputs]
        return trees.unflatten([_stacked(leaf) for leaf in zip(*rows, strict=True)], spec)

    @property
    def loss(self) -> Tensor | None:
        """Losses of the members."""
        losses = [None if report is None else report.loss for report in self]
        return None if all(loss is None for loss in losses) else _stacked(losses)

    @property
    def hamiltonian(self) -> Tensor:
        """H of the members."""
        return _stacked([None if report is None else torch.as_tensor(report.hamiltonian) for report in self])

    def __getitem__(self, member: int) -> StepReport | None:
        return self._reports[member]

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[StepReport | None]:
        return (self[member] for member in range(len(self)))


class LaneReport(PopulationReport):
    """The report of one step of a block, looked up in its stacked results when it is read."""

    __slots__ = ("_ahead", "_index")

    def __init__(self, ahead: Any, index: int) -> None:
        self._ahead, self._index = ahead, index

    @property
    def took(self) -> list[bool]:
        """Which members took a sample."""
        return self._ahead.block.active.tolist()

    @property
    def y(self) -> Any:
        """Outputs of the members."""
        ran, active = self._ahead.ran, self._ahead.block.active
        flat = self._ahead.block.layout.flat
        return trees.unflatten([_masked(flat(leaf[self._index]), active) for leaf in ran.y], ran.y_spec)

    @property
    def loss(self) -> Tensor | None:
        """Losses of the members."""
        losses, batch = self._ahead.losses, self._ahead.block
        if not losses:
            return None
        found = losses[self._index].flatten()[: len(batch.blocks)]
        if batch.complete:
            return found
        learns = batch.learns[self._index]
        return _masked(found, learns) if learns.any() else None

    def __getitem__(self, member: int) -> StepReport | None:
        batch, ran, plan = self._ahead.block, self._ahead.ran, self._ahead.plan
        lane = range(len(self))[member]
        sample = batch.lane_sample(self._index, lane)
        if sample is None:
            return None
        pick = lambda rows: batch.layout.pick(rows[self._index], lane)  # noqa: E731
        return StepReport(
            float(plan.clock[self._index, lane]),
            trees.unflatten([pick(leaf) for leaf in ran.y], ran.y_spec),
            None if sample.target is None or ran.loss is None else pick(ran.loss),
            sample,
            phi=plan.phi(self._index, lane),
            coupling=None if ran.coupling is None else pick(ran.coupling),
        )

    def __len__(self) -> int:
        return len(self._ahead.block.blocks)


def _masked(rows: Tensor, there: np.ndarray) -> Tensor:
    """NaN, or 0 among whole numbers, in rows of members that have no value."""
    if there.all():
        return rows
    rows = rows.clone()
    rows[torch.from_numpy(~there).to(rows.device)] = float("nan") if rows.is_floating_point() else 0
    return rows


def _stacked(rows: Sequence[Tensor | None]) -> Tensor:
    """One row for each member, NaN or 0 for those without."""
    example = next((row for row in rows if row is not None), torch.tensor(float("nan")))
    nothing = torch.full_like(example, float("nan") if example.is_floating_point() else 0)
    try:
        return torch.stack([nothing if row is None else row for row in rows])
    except RuntimeError as error:
        shapes = sorted({tuple(row.shape) for row in rows if row is not None})
        raise SampleError(
            f"the outputs of the members have the shapes {shapes}: read report[number].y one by one"
        ) from error
