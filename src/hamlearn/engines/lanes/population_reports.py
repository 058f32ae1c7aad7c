"""What a step of a population yields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engines.blocks.reports import Ahead
from hamlearn.sample import Sample, StepReport


class PopulationReport:
    """What one step of all members yields.

    Attributes:
        t: Time of each member at which the sample was taken.
        y: The outputs; each tensor has the members as its first axis.
        loss: L(y, target) of each member; `None` without target.
        hamiltonian: H of each member.
        sample: The sample.
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
    """

    __slots__ = ("_reports",)

    def __init__(self, reports: list[StepReport]) -> None:
        self._reports = reports

    @property
    def t(self) -> list[float]:
        """Times of the members."""
        return [report.t for report in self._reports]

    @property
    def y(self) -> Any:
        """Outputs of the members."""
        rows = [trees.flatten(report.y) for report in self._reports]
        columns = zip(*(leaves for leaves, _ in rows), strict=True)
        return trees.unflatten([torch.stack(leaves) for leaves in columns], rows[0][1])

    @property
    def loss(self) -> Tensor | None:
        """Losses of the members."""
        losses = [report.loss for report in self._reports]
        return None if losses[0] is None else torch.stack(losses)  # type: ignore[arg-type]

    @property
    def hamiltonian(self) -> Tensor:
        """H of the members."""
        return torch.stack([torch.as_tensor(report.hamiltonian) for report in self._reports])

    @property
    def sample(self) -> Sample:
        """The sample."""
        return self._reports[0].sample

    @property
    def skipped(self) -> list[bool]:
        """Which members skipped the sample."""
        return [report.skipped for report in self._reports]

    def __getitem__(self, member: int) -> StepReport:
        return self._reports[member]

    def __len__(self) -> int:
        return len(self._reports)


class PopulationBlockReport(PopulationReport):
    """The report of one step of a block; what it tells is looked up when it is asked for."""

    __slots__ = ("_ahead", "_flat", "_index")

    def __init__(self, ahead: Ahead, index: int, flat: Callable[[Tensor], Tensor]) -> None:
        self._ahead = ahead
        self._index = index
        self._flat = flat

    @property
    def t(self) -> list[float]:
        """Times of the members."""
        return self._plan.all_times[self._index].tolist()

    @property
    def y(self) -> Any:
        """Outputs of the members."""
        ran = self._ahead.ran
        return trees.unflatten([self._flat(leaf[self._index]) for leaf in ran.y], ran.y_spec)

    @property
    def loss(self) -> Tensor | None:
        """Losses of the members."""
        if not self._ahead.block.has_target(self._index):
            return None
        losses = self._ahead.ran.loss
        return None if losses is None else self._flat(losses[self._index])

    @property
    def hamiltonian(self) -> Tensor:
        """H of the members."""
        return torch.stack([torch.as_tensor(self[member].hamiltonian) for member in range(len(self))])

    @property
    def sample(self) -> Sample:
        """The sample."""
        return self._ahead.block.sample(self._index)

    @property
    def skipped(self) -> list[bool]:
        """None: steps that are not finite are taken one by one."""
        return [False] * len(self)

    def __getitem__(self, member: int) -> StepReport:
        loss, coupling = self.loss, self._ahead.ran.coupling
        y = trees.flatten(self.y)
        return StepReport(
            self.t[member],
            trees.unflatten([leaf[member] for leaf in y[0]], y[1]),
            None if loss is None else loss[member],
            self.sample,
            phi=self._plan.member_phi(self._index, member),
            coupling=None if coupling is None else self._flat(coupling[self._index])[member],
        )

    def __len__(self) -> int:
        return self._plan.all_times.shape[1]

    @property
    def _plan(self) -> Any:
        return self._ahead.plan
