"""Many copies of a learner, on one stream or on one each, all in one compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor

from hamlearn.adaptive import Adaptive
from hamlearn.credit import Echo
from hamlearn.engines.blocks.runner import undo_of
from hamlearn.engines.eager.commit import Withdrawal
from hamlearn.engines.lanes.agent_reports import AgentsReport
from hamlearn.engines.lanes.population_reports import PopulationReport
from hamlearn.engines.lanes.population_runner import PopulationRunner, how_members_differ
from hamlearn.engines.setting import check_chunk, check_steps, no_sample
from hamlearn.errors import ConfigError, HamlearnError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.learner.agents import Agents
from hamlearn.learner.learner import Learner, stepper_of
from hamlearn.learner.population_saving import PopulationSaving
from hamlearn.network import Network
from hamlearn.sample import Label, Sample
from hamlearn.state.replay import generators
from hamlearn.streams.reader import Reader


class Population(PopulationSaving):
    """Learners that differ in their hyper-parameters or their first weights, run together.

    There is a member for every pair of a hyper-parameter setting and a seed, those of the first setting first.
    Members do not touch each other; each ends where it would have ended alone. On the CPU the innermost loop of
    every operation runs over the members; on a GPU each member has a block of threads.

    All members learn from one stream, which `run` is given; or, with `streams`, each from its own: with its own
    inputs, boundaries, missing targets and time steps. Such members are agents. One whose stream has ended rests
    while the others go on, and one that goes wrong is set aside.

    Args:
        learner_factory: Makes a learner from a `Hyper`; called once per member, right after
            `torch.manual_seed(seed)`. All learners must have the same shapes, order, credit and loss.
        hyper: Hyper-parameter settings, or one of them.
        seeds: Seeds of the first weights.
        streams: One stream for each member, in their order; `None`: `run` is given one for all.

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

        Agents, each with a feed of its own:

        >>> feeds = [stream[:30], stream[30:]]
        >>> agents = hl.Population(make, hyper=[hl.Hyper()], seeds=[0, 1], streams=feeds)
        >>> reports = list(agents.run())
        >>> len(reports), reports[25].took, agents.positions
        (30, [True, False], [30, 20])
    """

    def __init__(
        self,
        learner_factory: Callable[[Hyper], Learner],
        hyper: Hyper | Sequence[Hyper],
        seeds: Sequence[int] = (0,),
        streams: Sequence[Iterable[Sample]] | None = None,
    ) -> None:
        hyper = [hyper] if isinstance(hyper, Hyper) else hyper
        if not hyper or not seeds:
            raise ConfigError(
                "a population needs at least one Hyper and one seed: give hyper=[...] and seeds=[...]"
            )
        if not callable(learner_factory):
            raise ConfigError(
                f"learner_factory is a {type(learner_factory).__name__}: give a function from a Hyper to an "
                "hl.Learner"
            )
        members = []
        for setting in hyper:
            for seed in _whole(seeds):
                torch.manual_seed(seed)
                members.append(learner_factory(setting))
        self._adopt(members, streams)

    @classmethod
    def of(cls, members: Sequence[Learner], streams: Sequence[Iterable[Sample]] | None = None) -> Population:
        """The population of learners that have been made already, alike but for hyper-parameters and weights.

        Args:
            members: The learners.
            streams: One for each of them, as for a population that makes its own.
        """
        if not members:
            raise ConfigError("a population needs at least one learner: give some")
        population = cls.__new__(cls)
        population._adopt(list(members), streams)
        return population

    def _adopt(self, members: list[Learner], streams: Sequence[Iterable[Sample]] | None) -> None:
        for member in members:
            if not isinstance(member, Learner):
                raise ConfigError(f"a member is a {type(member).__name__}: each must be an hl.Learner")
        _check_alike(members)
        self._members: list[Learner] = members
        self._reader = Reader()
        self._assemble(None if streams is None else _checked(streams, len(members)))

    def _assemble(self, streams: list[Iterable[Sample]] | None) -> None:
        self._steppers = [stepper_of(member) for member in self._members]
        self._blocks = PopulationRunner(self._steppers, self._reader, self.step)
        self._agents = None if streams is None else Agents(self._members, self._steppers, streams)

    def __getstate__(self) -> dict[str, Any]:
        streams = None if self._agents is None else self._agents.streams
        return vars(self) | {"_members": self.members, "_steppers": None, "_blocks": None, "_agents": streams}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._assemble(state["_agents"])

    def __copy__(self) -> Population:
        raise ConfigError("copy.copy() would give two populations the same members: use copy.deepcopy()")

    @property
    def members(self) -> list[Learner]:
        """The learners, each as it is after the last report; a change to one is taken up by the next run."""
        self._blocks.settle()
        self._blocks.spread()
        if self._agents is not None:
            self._agents.settle()
            self._agents.spread()
        return self._members

    def member(self, number: int) -> Learner:
        """One of the learners, as it is after the last report: to be looked at, changed, saved or loaded.

        With streams of their own, its checkpoint holds its place in its stream, and a learner that is alone can
        load it and go on.
        """
        if self._agents is None:
            return self.members[number]
        self._agents.settle()
        self._agents.spread(range(len(self._members))[number])
        return self._members[number]

    def __len__(self) -> int:
        return len(self._members)

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken; of all streams, by whom most have been."""
        return max(self.positions)

    @property
    def positions(self) -> list[int]:
        """How many samples each member has taken of its present stream."""
        if self._agents is not None:
            self._agents.count()
            return [stepper.reader.position for stepper in self._steppers]
        self._blocks.count()
        return [self._reader.position] * len(self._members)

    @property
    def aside(self) -> dict[int, Exception]:
        """Members that the last run has set aside, and why; each is as it was before the sample it failed at."""
        return {} if self._agents is None else dict(self._agents.aside)

    def recompile(self) -> None:
        """Record the step of all members again at the next compiled block; see `Learner.recompile`."""
        self._blocks.settle()
        self._blocks.recompile()
        if self._agents is not None:
            self._agents.settle()
            self._agents.engine.steps.clear()

    def step(self, sample: Sample) -> PopulationReport:
        """Let each member take one sample, eagerly; if one cannot, all stay exactly as they were."""
        if not isinstance(sample, Sample | Label):
            raise no_sample(sample)
        if isinstance(sample, Label) or (sample.id is not None and sample.target is None):
            raise SampleError("a population takes samples whose targets come with them: labels cannot come later")
        members, reports = self.members, []
        undo, first = [undo_of(stepper) for stepper in self._steppers], self._steppers[0].parts
        random = generators(first.devices)

        def put_back() -> None:
            for stepper, back in zip(self._steppers, undo, strict=True):
                stepper.make_whole()
                back()
            Withdrawal(first, random)()

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
        stream: Iterable[Sample] | None = None,
        max_steps: int | None = None,
        engine: Literal["compiled", "eager"] = "compiled",
        chunk: int | None = None,
        *,
        resume: bool = False,
    ) -> Iterator[Any]:
        """Take samples from `stream`, or from each member's own, and yield a report of all members for each step.

        With streams of their own, each step takes the next sample of every stream that has one, and the run ends
        with the last of them. A member that cannot take a sample, or whose stream fails or ends within a sequence,
        is set aside: it stays as it was before, a warning names it, `aside` tells why, and the others go on. The
        reports are `PopulationReport`s for one stream, and `AgentsReport`s for several.

        Args:
            stream: Any iterable of samples, endless or not; `None` where members have streams of their own.
            max_steps: How many samples to take at most, of each stream.
            engine: `"compiled"`: all members in one loop. `"eager"`: one after the other.
            chunk: How many steps are taken at a time, at most; `None`: 256, and 1024 on a GPU, and fewer where
                that many samples of all streams would take more than 128 MB.
            resume: Go on where the last run stopped, or where the loaded checkpoint was saved.
        """
        if engine not in ("eager", "compiled"):
            raise ConfigError(f"engine={engine!r} is not known: use 'eager' or 'compiled'")
        check_steps(max_steps)
        size = check_chunk(chunk, bool(self._steppers[0].parts.devices))
        self._check_source(stream)
        # A member may have been run alone meanwhile, and have run ahead of the reports that were read.
        self._steppers[:] = [stepper_of(member) for member in self._members]
        if self._agents is not None:
            if engine == "eager":
                return self._agents.eager(max_steps, resume)
            return self._agents.compiled(max_steps, resume, chunk, size)
        assert stream is not None
        if engine == "eager":
            return self._reader.reports(self.step, stream, max_steps, resume, lambda: 0)
        self._blocks.settle()
        return self._blocks.reports(stream, max_steps, resume, size)

    def _check_source(self, stream: object) -> None:
        if stream is None and self._agents is None:
            raise ConfigError(
                "there is nothing to learn from: give run(stream), or Population(..., streams=[...]) with one "
                "stream for each member"
            )
        if stream is not None and self._agents is not None:
            raise ConfigError(
                "each member of this population has a stream of its own: call run() without a stream, or make the "
                "population without streams="
            )


def _whole(seeds: Any) -> list[int]:
    try:
        return [index(seed) for seed in seeds]
    except TypeError as error:
        raise ConfigError(f"seeds={seeds!r} must be whole numbers, as in seeds=range(4)") from error


def _checked(streams: Sequence[Iterable[Sample]], members: int) -> list[Iterable[Sample]]:
    if isinstance(streams, Mapping):
        raise ConfigError("streams is a mapping, and members have numbers: give list(streams.values())")
    found = list(streams)
    for number, stream in enumerate(found):
        if isinstance(stream, str | Sample) or not isinstance(stream, Iterable):
            raise ConfigError(f"stream {number} is a {type(stream).__name__}: give an iterable of samples")
    if len(found) != members:
        raise ConfigError(
            f"there are {members} members, one for each pair of a Hyper and a seed, but {len(found)} streams: "
            "give one stream for each member"
        )
    # A list may be read by many at once, since each has an iterator of its own.
    moving = [id(stream) for stream in found if hasattr(stream, "state_dict") or iter(stream) is stream]
    if len(set(moving)) < len(moving):
        raise ConfigError(
            "one stream is given to two members, which would each take samples from the other: make a stream for "
            "each, or leave out streams= and give run() the one that all are to see"
        )
    return found


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
        differs = how_members_differ(stepper_of(first).parts, stepper_of(member).parts)
        if differs is not None:
            raise ConfigError(
                f"member 0 and member {number} are not alike: {differs}. The learners of a population differ in "
                "hyper-parameters and weights only"
            )
    _check_apart(members)


def _check_apart(members: list[Learner]) -> None:
    """Refuse members that would write to the same memory: each would lose what it has learned to the last."""
    owners: dict[Any, tuple[int, str]] = {}
    for number, member in enumerate(members):
        for name, tensor in _written(member.network).items():
            if not tensor.numel():
                continue
            other, there = owners.setdefault(tensor.untyped_storage().data_ptr(), (number, name))
            if other != number:
                raise ConfigError(
                    f"member {other} and member {number} share {there!r}, which each of them changes: give each "
                    "member a module of its own (copy.deepcopy), or let none change it (requires_grad_(False); "
                    "eval() for buffers)"
                )


def _written(network: Network) -> dict[str, Tensor]:
    """What a learner may change: weights that learn, and buffers of modules that are training."""
    found: dict[str, Tensor] = {name: each for name, each in network.named_parameters() if each.requires_grad}
    for path, module in network.named_modules():
        if module.training:
            found |= {f"{path}.{name}": buffer for name, buffer in module.named_buffers(recurse=False)}
    return found


__all__ = ["AgentsReport", "Population", "PopulationReport"]
