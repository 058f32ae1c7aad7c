"""What a step of members with streams of their own yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamlearn._base import trees as _tree
from hamlearn.engines.lanes.agent_plan import AgentPlan
from hamlearn.engines.lanes.agent_sheet import Sheet
from hamlearn.engines.lanes.lanes import Layout
from hamlearn.engines.recorded import SKIPPED, Ran
from hamlearn.errors import SampleError
from hamlearn.sample import Sample, StepReport


class Passed:
    """A block of steps that some members have taken as lanes of one loop.

    Attributes:
        who: The member of each lane.
        counts: How many steps of the block each lane was part of the loop.
        verdicts: What became of each, by step and lane; `None` where all were taken.
        times: Time of each lane before each step, and after the last.
        leaving: Lanes that go on by themselves within the block, by the step from which they do.
        last: The step from which no lane takes part.
    """

    def __init__(
        self,
        who: list[int],
        sheet: Sheet,
        plan: AgentPlan,
        ran: Ran,
        counts: np.ndarray,
        verdicts: np.ndarray | None,
        times: np.ndarray,
        layout: Layout,
    ) -> None:
        self.who, self.sheet, self.plan, self.ran, self.layout = who, sheet, plan, ran, layout
        self.counts, self.verdicts, self.times = counts, verdicts, times
        self.lane = {number: lane for lane, number in enumerate(who)}
        self.last = int(counts.max())
        self.leaving: dict[int, list[int]] = {}
        for lane in np.flatnonzero(counts < sheet.count).tolist():
            if sheet.blocks[lane] is not None:
                self.leaving.setdefault(int(counts[lane]), []).append(lane)

    def skipped(self, index: int, lane: int) -> bool:
        """Whether a lane skipped a step."""
        return self.verdicts is not None and bool(self.verdicts[index, lane] == SKIPPED)

    def report(self, index: int, lane: int) -> StepReport:
        """What one lane has to say of a step."""
        ran, pick, skipped = self.ran, self.layout.pick, self.skipped(index, lane)
        sample = self.sheet.sample(index, lane)
        loss = None
        if sample.target is not None and ran.loss is not None:
            loss = pick(ran.loss[index], lane)
        return StepReport(
            float(self.times[index, lane]),
            _tree.unflatten([pick(leaf[index], lane) for leaf in ran.y], ran.y_spec),
            loss,
            sample,
            phi=self.plan.phi(index, lane),
            coupling=None if ran.coupling is None else pick(ran.coupling[index], lane),
            skipped=skipped,
        )


class AgentsReport:
    """What one step of members with streams of their own yields: the next sample of each.

    A member whose stream has ended, or that was set aside, rests. What does not exist (the loss of a sample
    without target, all that a resting member would tell) is not a number, and 0 where an output holds whole
    numbers.

    Attributes:
        took: Which members took a sample.
        t: Time of each member at which its sample was taken; not a number for one that rests.
        y: The outputs; each tensor has the members as its first axis.
        loss: L(y, target) of each member; `None` where no member has one.
        hamiltonian: H of each member.
        samples: The sample of each member; `None` for one that rests.
        skipped: Which members undid the step because a value was not finite.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> feeds = [[hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1))] * length for length in (1, 2)]
        >>> agents = hl.Population(make, [hl.Hyper()], seeds=[0, 1], streams=feeds)
        >>> first, second = agents.run()
        >>> first.took, second.took, second[0] is None, second.loss.isnan().tolist()
        ([True, True], [False, True], True, [True, False])
    """

    __slots__ = ("_alone", "_index", "_members", "_passed")

    def __init__(self, members: int, passed: Passed | None, index: int, alone: Mapping[int, StepReport]) -> None:
        self._members, self._passed, self._index, self._alone = members, passed, index, alone

    @property
    def took(self) -> list[bool]:
        """Which members took a sample."""
        return [self._has(number) for number in range(self._members)]

    @property
    def t(self) -> list[float]:
        """Times of the members."""
        return self._listed(lambda lane: float(self._times[lane]), lambda report: report.t, float("nan"))

    @property
    def samples(self) -> list[Sample | None]:
        """Samples of the members."""
        passed, index = self._passed, self._index
        own = (lambda lane: None) if passed is None else (lambda lane: passed.sheet.sample(index, lane))
        return self._listed(own, lambda report: report.sample, None)

    @property
    def skipped(self) -> list[bool]:
        """Which members skipped their sample."""
        passed, index = self._passed, self._index
        own = (lambda lane: False) if passed is None else (lambda lane: passed.skipped(index, lane))
        return self._listed(own, lambda report: report.skipped, False)

    @property
    def y(self) -> Any:
        """Outputs of the members."""
        found = self._passed is not None and bool(self._lanes().size)
        trees = {number: _tree.flatten(report.y) for number, report in self._alone.items()}
        if not found and not trees:
            return None
        rows: list[Tensor | None]
        if found:
            assert self._passed is not None
            rows, spec = [leaf[self._index] for leaf in self._passed.ran.y], self._passed.ran.y_spec
        else:
            first = next(iter(trees.values()))
            rows, spec = [None] * len(first[0]), first[1]
        if any(each[1] != spec for each in trees.values()):
            raise SampleError("the outputs of the members differ in structure: read report[number].y one by one")
        leaves = [
            self._gathered(row, {number: each[0][place] for number, each in trees.items()})
            for place, row in enumerate(rows)
        ]
        return _tree.unflatten(leaves, spec)

    @property
    def loss(self) -> Tensor | None:
        """Losses of the members."""
        passed, known, rows = self._passed, None, None
        own = {number: report.loss for number, report in self._alone.items() if report.loss is not None}
        if passed is not None and passed.ran.loss is not None and self._index < passed.last:
            known = None if passed.sheet.known is None else passed.sheet.known[self._index]
            rows = passed.ran.loss[self._index]
        if not own and (rows is None or (known is not None and not known[self._lanes()].any())):
            return None
        return self._gathered(rows, own, known)

    @property
    def hamiltonian(self) -> Tensor:
        """H of the members."""
        passed, rows = self._passed, None
        if passed is not None and self._lanes().size:
            ran, index, flat = passed.ran, self._index, passed.layout.flat
            total: Any = 0.0
            if ran.loss is not None:
                loss = flat(ran.loss[index])
                phi = torch.from_numpy(passed.plan.phis(index).copy()).to(loss)
                total = phi * loss
                if passed.sheet.known is not None:
                    known = torch.from_numpy(passed.sheet.known[index]).to(loss.device)
                    total = torch.where(known, total, torch.zeros_like(loss))
            if ran.coupling is not None:
                total = total + flat(ran.coupling[index])
            rows = torch.as_tensor(total).expand(len(passed.who))
        own = {number: torch.as_tensor(report.hamiltonian) for number, report in self._alone.items()}
        return self._gathered(rows, own, flat=True)

    def __getitem__(self, member: int) -> StepReport | None:
        number = range(self._members)[member]
        if number in self._alone:
            return self._alone[number]
        if not self._has(number):
            return None
        assert self._passed is not None
        return self._passed.report(self._index, self._passed.lane[number])

    def __len__(self) -> int:
        return self._members

    @property
    def _times(self) -> np.ndarray:
        assert self._passed is not None
        return self._passed.times[self._index]

    def _lanes(self) -> np.ndarray:
        """Which lanes took part."""
        if self._passed is None:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self._passed.counts > self._index)

    def _has(self, number: int) -> bool:
        if number in self._alone:
            return True
        lane = None if self._passed is None else self._passed.lane.get(number)
        return lane is not None and bool(self._passed.counts[lane] > self._index)  # type: ignore[union-attr]

    def _listed(self, own: Callable[[int], Any], of: Callable[[StepReport], Any], nothing: Any) -> list[Any]:
        found = [nothing] * self._members
        for lane in self._lanes():
            assert self._passed is not None
            found[self._passed.who[lane]] = own(int(lane))
        for number, report in self._alone.items():
            found[number] = of(report)
        return found

    def _gathered(
        self,
        packed: Tensor | None,
        own: Mapping[int, Tensor],
        known: np.ndarray | None = None,
        *,
        flat: bool = False,
    ) -> Tensor:
        """Lanes and single members along one axis."""
        passed, lanes = self._passed, self._lanes()
        if known is not None:
            lanes = lanes[known[lanes]]
        rows = None
        if packed is not None and passed is not None and lanes.size:
            rows = packed if flat else passed.layout.flat(packed)
            if len(lanes) == self._members and passed.who == list(range(self._members)):
                return rows
        example = rows[0] if rows is not None else next(iter(own.values()), torch.tensor(float("nan")))
        nothing = float("nan") if example.is_floating_point() else 0
        total = torch.full((self._members, *example.shape), nothing, dtype=example.dtype, device=example.device)
        if rows is not None:
            assert passed is not None
            total[[passed.who[lane] for lane in lanes]] = rows[torch.from_numpy(lanes).to(rows.device)]
        _place(total, own.items())
        return total


def _place(total: Tensor, own: Iterable[tuple[int, Tensor]]) -> None:
    for number, row in own:
        if row.shape != total.shape[1:]:
            raise SampleError(
                f"member {number} has an output of shape {tuple(row.shape)} and another one of "
                f"{tuple(total.shape[1:])}: read report[number].y one by one"
            )
        total[number] = row
