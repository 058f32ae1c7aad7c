"""The pipeline learner: groups of nodes on ranks, all at work in every tick."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hamlearn.distributed import checkpoints
from hamlearn.distributed.announcements import Announcements, Header
from hamlearn.distributed.engines import Border, PartAligned
from hamlearn.distributed.folders import complete, newest_of, sweep, write_together
from hamlearn.distributed.messages import COSTATE, STATE, Peer, Receiver, Sender
from hamlearn.distributed.parts import Part, part_of
from hamlearn.distributed.place import find_place
from hamlearn.engine.ticks.ticker import Ticker
from hamlearn.errors import CheckpointError, ConfigError, HamlearnError, SampleError, StreamError
from hamlearn.hyper import Hyper
from hamlearn.local.setting import Settings, check_setting
from hamlearn.rules.local.local_system import Losses, OrderName
from hamlearn.rules.local.wiring import Groups, wire
from hamlearn.sample import Sample, State, StepReport
from hamlearn.streams.reader import Reader


class PipelineLearner(Settings):
    """`LocalLearner(align=True)` over the ranks of `torch.distributed`: each group of nodes at work in every tick.

    The equations are those of `LocalLearner`, and so are the results, bit-for-bit: what a group needs in a tick,
    its neighbours computed in the tick before, so that states travel forward and costates back while a tick is
    being computed. No rank ever waits for a bubble to pass. The results depend on the groups, not on how many
    ranks share them.

    Every method is to be called on every rank alike. Input enters at the first rank, targets at the last, and
    outputs and losses are reported there. An error on one rank ends the pipeline on all of them, each with an
    error of its own, within `timeout`: resume from a checkpoint.

    Args:
        module: As for `LocalLearner`, without cycles. Built alike on every rank; a rank uses, and moves, the
            weights of its own groups.
        loss: L(y, target).
        hyper: τ, η, β, φ and s.
        groups: As for `LocalLearner`; `None`: one per rank. Where there are more groups than ranks, a rank
            computes several consecutive ones.
        hold: Ticks that each sample is shown for.
        align: A pipeline is aligned: costates meet the inputs of their own samples, and a new one enters at every
            tick.
        order: `"parallel"` or `"sequential"`.
        on_nonfinite: `"raise"` or `"ignore"`. To skip a sample, all ranks would have to wait for each other.
        timeout: Seconds after which a rank that waits for another one raises `RankError`.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> mse = torch.nn.functional.mse_loss
        >>> learner = hl.distributed.PipelineLearner(net, mse, hl.Hyper(), groups=[2])
        >>> stream = [hl.Sample(torch.full((1, 2), k / 5), torch.ones(1, 1)) for k in range(5)]
        >>> len(list(learner.run(stream))), learner.rank, learner.ranks, learner.nodes
        (5, 0, 1, ['1', '2'])
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Losses,
        hyper: Hyper,
        groups: Groups = None,
        hold: int = 1,
        align: bool = True,
        order: OrderName = "parallel",
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        *,
        timeout: float = 60.0,
    ) -> None:
        self._place = place = find_place(timeout)
        self._hold, self._align, self._delay_free = hold, align, False
        self._hyper, self._reader = hyper, Reader()
        problem: HamlearnError | None = None
        part, config = None, dict[str, Any]()
        try:
            check_setting(hyper, hold, align, False, order, on_nonfinite)
            if not align:
                raise ConfigError("a pipeline is aligned: leave align=True, or use LocalLearner in one process")
            if on_nonfinite not in ("raise", "ignore"):
                raise ConfigError(
                    f"on_nonfinite={on_nonfinite!r} would need all ranks to wait for each other: use 'raise'"
                )
            wiring = wire(module, place.ranks if groups is None else groups)
            config = checkpoints.config_of(wiring, hyper, hold, align, order, on_nonfinite)
            part = part_of(wiring, place.rank, place.ranks, loss, hyper, order)
        except ConfigError as error:
            problem = error
        place.agree(problem, config | {"weights": _digest(module)})
        assert part is not None
        self._part, self._config, self._system = part, config, part.system
        with place.together():
            self._connect(part, on_nonfinite)

    def _connect(self, part: Part, on_nonfinite: str) -> None:
        """Make the lines to the neighbours, and the engine that uses them."""
        place, device = self._place, part.system.theta[0].device
        self._border = border = Border()
        before = after = None
        if place.rank > 0:
            before = Peer(place, place.rank - 1, device.type)
            border.states_in, border.costates_out = Receiver(before, STATE), Sender(before, COSTATE)
        if place.rank < place.ranks - 1:
            after = Peer(place, place.rank + 1, device.type)
            border.states_out, border.costates_in = Sender(after, STATE), Receiver(after, COSTATE)
        self._engine = PartAligned(part, border)
        self._ticker = Ticker(part.system, self._engine, on_nonfinite)
        finite = on_nonfinite != "ignore"
        self._announced = Announcements(part, border, before, after, finite=finite)

    @property
    def rank(self) -> int:
        """Place of this process in the pipeline."""
        return self._place.rank

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return self._place.ranks

    @property
    def module(self) -> nn.Module:
        """The module that learns; a rank moves the weights of its own groups."""
        return self._system.wiring.root

    @property
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s."""
        return self._hyper

    @property
    def nodes(self) -> list[str]:
        """Names of the groups of this rank, each that of its last node."""
        return [node.name for node in self._system.wiring.nodes]

    @property
    def delays(self) -> dict[str, int]:
        """Ticks from a group's computing of a sample to its learning from it, for this rank's groups."""
        return {name: self._part.plan.delays(name)[0] for name in self.nodes}

    @property
    def ticks(self) -> int:
        """Ticks made so far."""
        return int(self._ticker.carry.number)

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        return self._reader.position

    @property
    def state(self) -> State:
        """Time, h and z by node, and ω by parameter name, of this rank's groups. For all ranks alike."""
        self._settle()
        now = self._ticker
        h, z = self._engine.by_node(now.carry)
        return State(now.t, h or None, z or None, self._system.by_name(now.omega), now.updates)

    @property
    def _reads(self) -> bool:
        """Whether this rank reads a stream: inputs at the first one, targets at the last."""
        return self.rank in (0, self.ranks - 1)

    def step(self, sample: Sample | None = None) -> StepReport:
        """Show one sample for `hold` ticks, on every rank alike.

        Args:
            sample: On the first rank what is shown, on the last one its target (with the same tau and boundary; u
                is not looked at). Other ranks may leave it out.
        """
        if sample is None and self._reads:
            raise SampleError("step() was given no sample: it takes one on the first and on the last rank")
        report = self._shown(sample)
        self._settle_sent()
        return report

    def flush(self) -> list[StepReport]:
        """Let the samples in flight pass through, without a new one; returns their reports."""
        reports = []
        with self._place.together():
            while not self._engine.fresh(self._ticker.carry):
                report = self._ticker.show(None, 1)
                if report is not None:
                    reports.append(report)
        self._settle_sent()
        return reports

    def run(
        self,
        stream: Iterable[Sample] | None = None,
        max_steps: int | None = None,
        *,
        resume: bool = False,
        save_to: str | os.PathLike[str] | None = None,
        save_every: int = 1000,
        keep: int | None = 2,
    ) -> Iterator[StepReport]:
        """Take samples from `stream` and yield a report for each, in order, on every rank at the same tick.

        On the last rank reports hold the outputs and losses; elsewhere `y` and `loss` are `None`. They come some
        ticks after their samples, and a finite stream is flushed at its end.

        Args:
            stream: On the first and on the last rank, the same samples; the first looks at u, the last at the
                target. Other ranks read nothing.
            max_steps: How many samples to take at most; the same on every rank.
            resume: Continue where the loaded checkpoint was saved.
            save_to: A folder for checkpoints.
            save_every: Samples from one checkpoint to the next.
            keep: How many complete checkpoints to keep; `None`: all.
        """
        if stream is None and self._reads:
            raise ConfigError("run() takes a stream on the first and on the last rank")
        if not isinstance(save_every, int) or save_every < 1 or (keep is not None and keep < 1):
            raise ConfigError(f"save_every={save_every!r} and keep={keep!r} must be whole numbers, at least 1")
        return self._run(stream, max_steps, resume, save_to, save_every, keep)

    def _run(
        self, stream: Any, max_steps: int | None, resume: bool, save_to: Any, save_every: int, keep: int | None
    ) -> Iterator[StepReport]:
        with self._place.together():
            taken = 0
            for report in self._steps(stream, max_steps, resume):
                taken += 1
                if save_to is not None and self.position % save_every == 0:
                    self.save(save_to, keep=keep)
                if report.sample is not None:
                    yield report
            if self._over(max_steps is None or taken < max_steps):
                yield from self.flush()
            self._settle_sent()

    def _steps(self, stream: Iterable[Sample] | None, max_steps: int | None, resume: bool) -> Iterator[StepReport]:
        if self._reads:
            assert stream is not None
            yield from self._reader.reports(self._shown, stream, max_steps, resume, pending=lambda: 0)
            return
        if not resume:
            self._reader.progress = type(self._reader.progress)()
        while (report := self._step(None)) is not None:
            self._reader.progress = self._reader.progress.after(1, None)
            yield report

    def _over(self, ended: bool) -> bool:
        """Whether the stream has ended, as the first rank says; the last rank must have come to the same."""
        if not self._reads:
            return self._announced.last == "end"
        kind: Literal["end", "pause"] = "end" if ended else "pause"
        if self.rank == 0:
            self._announced.send(Header(kind, self.ticks))
            return ended
        found = self._follow().kind
        if found != kind:
            raise StreamError(
                f"the targets came to their {kind} after {self.position} samples, the inputs to something else "
                f"({found!r}): give the first and the last rank the same stream and the same max_steps"
            )
        return ended

    def _shown(self, sample: Sample | None) -> StepReport:
        report = self._step(sample)
        if report is None:
            raise StreamError("the first rank has ended its run: call step() or run() on every rank alike")
        return report

    def _step(self, sample: Sample | None) -> StepReport | None:
        """One step, or `None` if the first rank says that the run is over."""
        fresh, form = self._engine.fresh(self._ticker.carry), None
        if self.rank == 0:
            # Raises for a bad sample before anything is sent to the others.
            form = self._announced.form_of(sample)
        with self._place.together():
            if self.rank:
                header = self._follow()
            else:
                assert sample is not None
                header = Header("sample", self.ticks, bool(sample.boundary), sample.tau, fresh)
                self._announced.send(header, form)
            if header.kind != "sample":
                return None
            if sample is None:
                sample = Sample(None, None, header.tau, header.boundary)
            else:
                header.check_sample(sample)
            report = self._ticker.show(sample, self._hold)
        return report if report is not None else StepReport(self._ticker.t, None, None, None)

    def _follow(self) -> Header:
        """On other ranks than the first: what it is about to do."""
        return self._announced.follow(self.ticks, fresh=self._engine.fresh(self._ticker.carry))

    def _settle(self) -> None:
        """Have all that is under way, so that nothing of this learner is anywhere else."""
        with self._place.together():
            self._ticker.carry = self._engine.settle(self._ticker.carry)

    def _settle_sent(self) -> None:
        """Wait until the neighbours have all that was sent: this process may end next."""
        with self._place.together():
            self._announced.settle()
            self._border.settle()

    def reset(self) -> None:
        """Forget states and costates of nodes, and samples in flight, on every rank alike. ω, θ and t stay."""
        with self._place.together():
            self._ticker.drop()

    def save(self, folder: str | os.PathLike[str], *, keep: int | None = None) -> None:
        """Write everything to a new folder in `folder`, named by the tick, on every rank alike.

        Samples in flight, messages between ranks and the streams' positions are part of it. A reader finds
        the checkpoint complete, or not at all. All ranks need the same file system.

        Args:
            folder: Where checkpoints are kept.
            keep: How many complete ones to keep, the oldest are removed; `None`: all.
        """
        self._settle()
        write_together(self._place, Path(folder), self.ticks, partial(checkpoints.write, self._held()), keep)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False, drop: bool = False) -> None:
        """Read a checkpoint of as many ranks with the same groups; the pipeline continues bit-for-bit.

        Args:
            path: A checkpoint, or the folder of several, of which the newest complete one is taken.
            new_hyper: Accept other hyper-parameters than the checkpoint's.
            drop: Accept another number of ranks and other groups: take weights, their costates, time and place
                in the stream, and drop samples in flight and states.
        """
        self._settle()
        problem: HamlearnError | None = None
        change = None
        try:
            change = checkpoints.read(self._held(), newest_of(path), new_hyper=new_hyper, drop=drop)
        except CheckpointError as error:
            problem = error
        self._place.agree(problem)
        assert change is not None
        change()
        self._announced.forget()

    def resume(self, folder: str | os.PathLike[str]) -> bool:
        """Load the newest complete checkpoint in `folder`, if there is one; then `run(stream, resume=True)`.

        What dead runs have left there half written is removed.
        """
        newest = -1
        with self._place.together():
            if self.rank == 0:
                sweep(Path(folder))
                names = [path.name for path in complete(folder)]
                newest = int(names[-1].removeprefix("tick-")) if names else -1
            newest = self._place.gathered(newest)[0]
        if newest >= 0:
            self.load(Path(folder) / f"tick-{newest:012d}")
        return newest >= 0

    def _held(self) -> checkpoints.RankState:
        return checkpoints.RankState(self._ticker, self._reader, self._config, self.rank, self.ranks)


def _digest(module: nn.Module) -> str:
    """Tells first weights from others: ranks that began with different ones would make a network of both."""
    total = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if not tensor.is_meta:
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
