"""Many copies of a learner, on one stream or on one each, all in one compiled loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor

from hamlearn.credit import Echo
from hamlearn.engine.lanes.lanes import how_members_differ
from hamlearn.engine.lanes.reports import PopulationReport
from hamlearn.engine.lanes.runner import BYTES, LaneRunner
from hamlearn.engine.setting import check_chunk, check_steps, no_sample
from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.hyper import Hyper
from hamlearn.learner.learner import Learner, eager_of
from hamlearn.network import Network
from hamlearn.sample import Label, Sample
from hamlearn.state.saving import Loading, Savable, random_state
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader

COMMON = ("model", "setting")
"""What all members have in common, and is written down once."""


class Population(Savable):
    """Learners that differ in their hyper-parameters or their first weights, run together.

    There is a member for every pair of a hyper-parameter setting and a seed, those of the first setting first.
    Each ends where it would have ended alone. On the CPU the innermost loop of every operation runs over the
    members; on a GPU each member has a block of threads.

    All members learn from one stream, which `run` is given; or, with `streams`, each from its own, as agents do. A
    member whose stream has ended rests, and one that fails is frozen, while the others continue.

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
        members = [seeded(learner_factory, setting, seed) for setting in hyper for seed in _whole(seeds)]
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
        members, self._streams = self._members, streams
        eagers = lambda: [eager_of(member) for member in members]  # noqa: E731
        self._runner = LaneRunner(members, eagers, self._reader if streams is None else None)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_members": self.members, "_runner": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._assemble(state["_streams"])

    def __copy__(self) -> Population:
        raise ConfigError("copy.copy() would give two populations the same members: use copy.deepcopy()")

    @property
    def members(self) -> list[Learner]:
        """The learners, each as it is after the last report; a change to one holds from the next step on."""
        self._runner.show()
        return self._members

    def member(self, number: int) -> Learner:
        """One of the learners, as it is after the last report: to be looked at, changed, saved or loaded.

        With streams of their own, its checkpoint holds its place in its stream, and a single learner can load it.
        """
        return self.members[number]

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        feeds = "one stream for all" if self._streams is None else "a stream for each"
        return f"Population({len(self)} members, {feeds}, the first: {self._members[0]!r})"

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken; with several streams, the largest number."""
        return max(self.positions)

    @property
    def positions(self) -> list[int]:
        """How many samples have been taken of each member's present stream."""
        self._runner.count()
        if self._streams is None:
            return [self._reader.position] * len(self._members)
        return [reader.position for reader in self._runner.reader.readers]

    @property
    def aside(self) -> dict[int, Exception]:
        """Members that the last run has frozen, and why; each is as it was before the sample it failed at."""
        return dict(self._runner.reader.aside)

    def recompile(self) -> None:
        """Record the step of all members again at the next compiled block; see `Learner.recompile`."""
        self._runner.settle()
        self._runner.recompile()

    def step(self, sample: Sample | Label) -> PopulationReport:
        """Let each member take one sample, eagerly; a member that cannot is frozen, as in `run`."""
        if not isinstance(sample, Sample | Label):
            raise no_sample(sample)
        runner = self._runner
        runner.settle()
        runner.reader.aside = {}
        report = runner.take_each([sample] * len(self._members))
        assert report is not None
        return report

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
        with the last of them. A member that cannot take a sample, or whose own stream fails or ends within a
        sequence, is frozen: it stays as it was before, a warning names it, `aside` has the error, and the others
        continue. If no member is left on a shared stream, the error is raised.

        Args:
            stream: Any iterable of samples, endless or not; `None` if members have streams of their own.
            max_steps: How many samples to take at most, of each stream.
            engine: `"compiled"`: all members in one loop. `"eager"`: one member after the other, as members with
                `hl.Echo()` are in any case. A sample that a member skips is taken by all of them one by one.
            chunk: How many steps are taken at a time, at most; `None`: 256, and 1024 on a GPU, and fewer if that
                many samples of all streams would take more than 128 MB.
            resume: Continue where the last run stopped, or where the loaded checkpoint was saved.
        """
        if engine not in ("eager", "compiled"):
            raise ConfigError(f"engine={engine!r} is not known: use 'eager' or 'compiled'")
        check_steps(max_steps)
        runner, first = self._runner, self._members[0]
        size = check_chunk(chunk, bool(runner.parts[0].devices))
        self._check_source(stream)
        runner.reader.limit = BYTES if chunk is None else math.inf
        streams: Any = [stream] if self._streams is None else self._streams
        runner.singly = engine == "eager" or isinstance(first.credit, Echo)
        return runner.reports(streams, max_steps, resume, size)

    def _check_source(self, stream: object) -> None:
        if (stream is None) != (self._streams is None):
            return
        if stream is None:
            raise ConfigError(
                "there is nothing to learn from: give run(stream), or Population(..., streams=[...])"
            )
        raise ConfigError("each member has a stream of its own: call run() without one, or leave out streams=")

    def _note_saved(self, header: dict[str, Any]) -> None:
        self._reader.saved(header["reader"])
        for member, saved in zip(self.members, header["members"], strict=True):
            eager_of(member).reader.saved(saved["reader"])

    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = dict(random_state())
        headers, common = [], {}
        for number, member in enumerate(self.members):
            own, header = member._tell(f"{failed}, member {number}")
            tensors |= {f"member/{number}/{name}": own[name] for name in own if not name.startswith("rng/")}
            common = {key: header.pop(key) for key in COMMON}
            headers.append(header)
        return tensors, {"members": headers, "common": common, "reader": self._reader.state_dict()}

    def loadings_of(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it compared with the population."""
        members = self.members
        if "members" not in header:
            raise CheckpointError(
                f"{source} is that of a single learner: load it into one, or into population.member(number)"
            )
        common, saved = header["common"], header["members"]
        if len(saved) != len(members):
            raise CheckpointError(
                f"{source} holds {len(saved)} members, and this population has {len(members)}: make it with as "
                "many settings and seeds as the one that was saved"
            )
        left = Tensors(tensors)
        random = {name: left.take(name) for name in left.names() if name.startswith("rng/")}
        loadings = []
        for number, (member, about) in enumerate(zip(members, saved, strict=True)):
            own = dict(left.under(f"member/{number}/").items())
            where = f"member {number} of {source}"
            loadings += member.loadings_of(where, own | random, about | common, new_hyper=new_hyper)
        reader = self._reader

        def swap() -> None:
            reader.load_state_dict(header["reader"])

        return [*loadings, Loading([], swap, random)]


def seeded(learner_factory: Callable[[Hyper], Learner], setting: Hyper, seed: int) -> Learner:
    """A learner whose weights are drawn after `torch.manual_seed(seed)`; the generators stay as they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        return learner_factory(setting)


def _whole(seeds: Any) -> list[int]:
    try:
        return [index(seed) for seed in seeds]
    except TypeError as error:
        raise ConfigError(f"seeds={seeds!r} must be whole numbers, as in seeds=range(4)") from error


def _checked(streams: Sequence[Iterable[Sample]], members: int) -> list[Iterable[Sample]]:
    found = list(streams)
    for number, stream in enumerate(found):
        if isinstance(stream, str | Sample) or not isinstance(stream, Iterable):
            raise ConfigError(f"stream {number} is a {type(stream).__name__}: give an iterable of samples")
    if len(found) != members:
        raise ConfigError(
            f"there are {members} members, one for each pair of a Hyper and a seed, but {len(found)} streams"
        )
    # A list may be read by many at once, since each has an iterator of its own.
    moving = [id(stream) for stream in found if hasattr(stream, "state_dict") or iter(stream) is stream]
    if len(set(moving)) < len(moving):
        raise ConfigError(
            "one stream is given to two members, which would take samples from each other: make one for each, or "
            "leave out streams= and call run(stream)"
        )
    return found


def _check_alike(members: list[Learner]) -> None:
    first = members[0]
    for number, member in enumerate(members[1:], start=1):
        differs = how_members_differ(eager_of(first).parts, eager_of(member).parts)
        if differs is not None:
            raise ConfigError(
                f"member 0 and member {number} are not alike: {differs}. The learners of a population differ in "
                "hyper-parameters and weights only"
            )
    _check_apart(members)


def _check_apart(members: list[Learner]) -> None:
    """Raise `ConfigError` if members would write to the same memory: only the last would keep what it learns."""
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


AgentsReport = PopulationReport
"""The report of members with streams of their own is the same."""

__all__ = ["AgentsReport", "Population", "PopulationReport"]
