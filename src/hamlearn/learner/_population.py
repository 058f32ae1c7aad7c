"""Many copies of a learner on one stream, all in one compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from hamlearn.adaptive import Adaptive
from hamlearn.credit import Echo
from hamlearn.errors import ConfigError, HamlearnError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.learner._blocks import Undo
from hamlearn.learner._commit import Withdrawal
from hamlearn.learner._learner import Learner
from hamlearn.learner._population_blocks import PopulationRunner, how_members_differ
from hamlearn.learner._population_reports import PopulationReport
from hamlearn.learner._running import Reader
from hamlearn.learner._setting import check_chunk
from hamlearn.state import Label, Sample


class Population:
    """Learners that differ in their hyper-parameters or their first weights, run together on one stream.

    There is a member for every pair of a hyper-parameter setting and a seed, those of the first setting first.
    Members do not touch each other; each ends where it would have ended alone. On the CPU the innermost loop of
    every operation runs over the members.

    Args:
        learner_factory: Makes a learner from a `Hyper`; called once per member, right after
            `torch.manual_seed(seed)`. All learners must have the same shapes, order, credit and loss.
        hyper: Hyper-parameter settings.
        seeds: Seeds of the first weights.

    Example:
        >>> import torch, hamlearn as hl
        >>> def make(hyper):
        ...     network = hl.Network.feedforward(torch.nn.Linear(2, 1))
        ...     return hl.Learner(network, torch.nn.functional.mse_loss, hyper)
        >>> rates = [hl.Hyper.from_sgd(lr=lr) for lr in (0.01, 0.1)]
        >>> population = hl.Population(make, hyper=rates, seeds=[0, 1, 2])
        >>> stream = [hl.Sample(torch.randn(1, 2), target=torch.zeros(1, 1)) for _ in range(50)]
        >>> for report in population.run(stream):
        ...     losses = report.loss
        >>> losses.shape, len(population.members)
        (torch.Size([6]), 6)
    """

    def __init__(
        self, learner_factory: Callable[[Hyper], Learner], hyper: Sequence[Hyper], seeds: Sequence[int] = (0,)
    ) -> None:
        if not hyper or not seeds:
            raise ConfigError(
                "a population needs at least one Hyper and one seed: give hyper=[...] and seeds=[...]"
            )
        members = []
        for setting in hyper:
            for seed in seeds:
                torch.manual_seed(seed)
                members.append(learner_factory(setting))
        self._adopt(members)

    @classmethod
    def of(cls, members: Sequence[Learner]) -> Population:
        """The population of learners that have been made already, alike but for hyper-parameters and weights."""
        if not members:
            raise ConfigError("a population needs at least one learner: give some")
        population = cls.__new__(cls)
        population._adopt(list(members))
        return population

    def _adopt(self, members: list[Learner]) -> None:
        _check_alike(members)
        self._members: list[Learner] = members
        self._reader = Reader()
        self._blocks = PopulationRunner(members, self._reader, self.step)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_members": self.members, "_blocks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._blocks = PopulationRunner(self._members, self._reader, self.step)

    def __copy__(self) -> Population:
        raise ConfigError("copy.copy() would give two populations the same members: use copy.deepcopy()")

    @property
    def members(self) -> list[Learner]:
        """The learners, each as it is after the last report; a change to one is taken up by the next run."""
        self._blocks.settle()
        self._blocks.spread()
        return self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        self._blocks.count()
        return self._reader.position

    def step(self, sample: Sample) -> PopulationReport:
        """Let each member take one sample, eagerly; if one cannot, all stay exactly as they were."""
        if isinstance(sample, Label) or (sample.id is not None and sample.target is None):
            raise SampleError("a population takes samples whose targets come with them: labels cannot come later")
        members, reports = self.members, []
        undo, random = [Undo(member) for member in members], members[0]._generators()

        def put_back() -> None:
            for member, back in zip(members, undo, strict=True):
                member._make_whole()
                back()
            Withdrawal(members[0], random)()

        self._blocks.repair = put_back
        for number, member in enumerate(members):
            try:
                reports.append(member.step(sample))
            except HamlearnError as error:
                self._blocks.make_whole()
                raise type(error)(f"member {number} of {len(members)}: {error}") from error
        self._blocks.repair = None
        return PopulationReport(reports)

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["compiled", "eager"] = "compiled",
        chunk: int | None = None,
    ) -> Iterator[PopulationReport]:
        """Take samples from `stream` and yield a report of all members for each.

        Args:
            stream: Any iterable of samples, endless or not.
            max_steps: How many samples to take at most.
            engine: `"compiled"`: all members in one loop. `"eager"`: one after the other.
            chunk: How many samples are taken at a time, at most; `None`: 256, and 1024 on a GPU.
        """
        if engine == "eager":
            return self._reader.reports(self.step, stream, max_steps, False, lambda: 0)
        if engine != "compiled":
            raise ConfigError(f"engine={engine!r} is not known: use 'eager' or 'compiled'")
        size = check_chunk(chunk, bool(self.members[0]._devices))
        self._blocks.settle()
        return self._blocks.reports(stream, max_steps, False, size)


def _check_alike(members: list[Learner]) -> None:
    first = members[0]
    if isinstance(first.credit, Echo):
        raise ConfigError("a population takes hl.Forward() or hl.Cleared(), not hl.Echo(): run its members alone")
    for number, member in enumerate(members[1:], start=1):
        for what, one, other in (
            ("order", first.order, member.order),
            ("credit", first.credit, member.credit),
            ("reset_h", first.reset_h, member.reset_h),
            ("integrator", repr(first.integrator), repr(member.integrator)),
            ("on_nonfinite", first.on_nonfinite, member.on_nonfinite),
            ("sign s", first.hyper.s, member.hyper.s),
            ("a beta that adapts:", *(isinstance(m.hyper.beta, Adaptive) for m in (first, member))),
        ):
            if one != other:
                raise ConfigError(
                    f"member {number} has {what} {other}, but member 0 has {one}: the learners of a population "
                    "differ in hyper-parameters and weights only"
                )
        differs = how_members_differ(first, member)
        if differs is not None:
            raise ConfigError(
                f"member 0 and member {number} are not alike: {differs}. The learners of a population differ in "
                "hyper-parameters and weights only"
            )


__all__ = ["Population", "PopulationReport"]
