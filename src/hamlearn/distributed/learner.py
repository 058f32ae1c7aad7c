"""The pipeline learner: groups of nodes on ranks, all at work in every tick."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from hamlearn import _checkpoint, _tree
from hamlearn._identity import identity
from hamlearn._version import __version__
from hamlearn.distributed import checkpoints
from hamlearn.distributed.engines import Border, Engine, engine_of
from hamlearn.distributed.header import Header, described, template
from hamlearn.distributed.links import COSTATE, STATE, Headers, Receiver, Sender
from hamlearn.distributed.parts import Part, part_of
from hamlearn.distributed.place import find_place
from hamlearn.distributed.storage import Saved, Saving, complete, is_checkpoint, sweep
from hamlearn.errors import CheckpointError, ConfigError, HamlearnError, RankError, SampleError, StreamError
from hamlearn.hyper import Hyper
from hamlearn.learner._running import Reader
from hamlearn.local.finite import check_input
from hamlearn.local.kept import evaluating
from hamlearn.local.outer import dense
from hamlearn.local.progress import Progress
from hamlearn.local.setting import Settings, check_setting
from hamlearn.local.system import Losses, Order
from hamlearn.local.wiring import Groups, Wiring, wire
from hamlearn.state import Sample, State, StepReport


class PipelineLearner(Settings):
    """`LocalLearner` over the ranks of `torch.distributed`: every group of nodes at work in every tick.

    The equations are those of `LocalLearner`, and so are the results, bit for bit: what a group needs in a tick,
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
        align: Whether costates meet the inputs of their own samples, so that a new sample may enter at every tick.
        order: `"parallel"` or `"sequential"`.
        on_nonfinite: `"raise"` or `"ignore"`. To skip a sample, all ranks would have to wait for each other.
        mesh: A `DeviceMesh` with a dimension `"pipeline"`, and one `"data"` for replicas of the pipeline, each
            with a stream of its own; `None`: one pipeline of all ranks of the job, in their order.
        average_every: Samples after which the replicas put the means of their weights θ and costates ω in the
            place of their own. Buffers are not averaged. All replicas take the same number of samples.
        timeout: Seconds after which a rank that waits for another one raises `RankError`.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> mse = torch.nn.functional.mse_loss
        >>> learner = hl.distributed.PipelineLearner(net, mse, hl.Hyper(), groups=[2], align=True)
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
        align: bool = False,
        order: Order = "parallel",
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        *,
        mesh: DeviceMesh | None = None,
        average_every: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._place = place = find_place(mesh, timeout)
        self._average_every = average_every
        self._hold, self._align, self._delay_free, self._blocks = hold, align, False, None
        self._failed: str | None = None
        problem: HamlearnError | None = None
        part, config = None, dict[str, Any]()
        try:
            check_setting(hyper, hold, align, False, order, on_nonfinite)
            if on_nonfinite not in ("raise", "ignore"):
                raise ConfigError("on_nonfinite='skip' needs all ranks at one table in every tick: use 'raise'")
            if average_every is None and len(place.pipelines) > 1:
                raise ConfigError(
                    f"the mesh has {len(place.pipelines)} replicas, which would never hear of each other: give "
                    "average_every, a number of samples"
                )
            if average_every is not None and (not isinstance(average_every, int) or average_every < 1):
                raise ConfigError(f"average_every={average_every!r} must be a number of samples, at least 1")
            wiring = wire(module, place.ranks if groups is None else groups)
            config = config_of(wiring, hyper, hold, align, order, on_nonfinite)
            part = part_of(wiring, place.rank, place.ranks, loss, hyper, order)
        except ConfigError as error:
            problem = error
        with self._together():
            problem = place.agree(problem, config)
            if problem is not None:
                raise problem
        assert part is not None
        self._build(part, hyper, on_nonfinite, config)

    def _build(self, part: Part, hyper: Hyper, on_nonfinite: str, config: dict[str, Any]) -> None:
        place, self._part, self._hyper, self.config = self._place, part, hyper, config
        self._system = part.system
        self._device = part.system.theta[0].device
        before, after = (place.peer(place.rank + way, self._device.type) for way in (-1, 1))
        self._border = Border()
        if before is not None:
            self._border.states_in, self._border.costates_out = Receiver(before, STATE), Sender(before, COSTATE)
        if after is not None:
            self._border.states_out, self._border.costates_in = Sender(after, STATE), Receiver(after, COSTATE)
        self._headers = Headers(before, after)
        self._engine: Engine = engine_of(part, self._border, align=self._align)
        self._progress = Progress(part.system, self._engine, on_nonfinite)
        self._reader = Reader()
        self._key: str | None = None
        self._told: str | None = None
        group = place.group("saving") if place.ranks > 1 else None
        self._saving = Saving(place.rank, group, place.timeout)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError("a pipeline cannot be copied or pickled on one of its ranks: save and load a checkpoint")

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What ranks do together; where it fails, closed connections tell the others, and nothing goes on."""
        if self._failed is not None:
            raise RankError(
                f"this pipeline has failed before ({self._failed}), and its ranks may be at different ticks: "
                "build a new one on every rank and load a checkpoint"
            )
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            if "_border" in vars(self):
                self._border.drop()
                self._headers.drop()
            self._place.close()
            raise

    @property
    def rank(self) -> int:
        """Place of this process in the pipeline."""
        return self._place.rank

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return self._place.ranks

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
        """Aligned: ticks from a group's computing of a sample to its learning from it, for this rank's groups."""
        if not self._align:
            raise ConfigError(
                "delays are defined for align=True: otherwise a costate meets whatever input is there"
            )
        return {name: self._part.plan.delays(name)[0] for name in self.nodes}

    @property
    def ticks(self) -> int:
        """Ticks made so far."""
        return self._engine.number

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        return self._reader.position

    @property
    def state(self) -> State:
        """Time, h and z by node, and ω by parameter name, of this rank's groups. For all ranks alike."""
        with self._together():
            self._engine.settle()
        h, z = self._engine.by_node()
        now = self._progress
        return State(now.t, h or None, z or None, self._system.by_name(now.omega), now.updates)

    def step(self, sample: Sample | None = None) -> StepReport:
        """Show one sample for `hold` ticks, on every rank alike.

        Args:
            sample: On the first rank what is shown, on the last one its target (with the same tau and boundary; u
                is not looked at). Other ranks may leave it out.
        """
        if sample is None and self.rank in (0, self.ranks - 1):
            raise SampleError("step() was given no sample: it takes one on the first and on the last rank")
        report = self._shown(sample)
        self._settle_sent()
        return report

    def _shown(self, sample: Sample | None) -> StepReport:
        report = self._step(sample)
        if report is None:
            raise StreamError("the first rank has ended its run: call step() or run() on every rank alike")
        return report

    def _settle_sent(self) -> None:
        """Wait until the neighbours have all that was sent: this process may end next."""
        with self._together():
            self._headers.settle()
            self._border.settle()

    def _step(self, sample: Sample | None) -> StepReport | None:
        """One step, or `None` where the first rank says that the run is over."""
        header = self._announce(sample) if self.rank == 0 else None
        with self._together():
            if header is None:
                header = self._follow(sample)
                if header.kind != "sample":
                    return None
            own = Sample(None, None, header.tau, header.boundary) if sample is None else sample
            report = self._progress.show(own, self._hold)
            self._average()
        return report if report is not None else StepReport(self._progress.t, None, None, None)

    @torch.no_grad()
    def _average(self) -> None:
        """θ and ω become the means over all replicas, where there are some and it is time."""
        progress, place = self._progress, self._place
        if len(place.pipelines) == 1 or self._average_every is None or progress.shown % self._average_every:
            return
        omega = [dense(w).clone() for w in progress.omega]
        place.average([*(w.detach() for w in self._system.theta), *omega])
        progress.omega = list(omega)

    def _announce(self, sample: Sample | None) -> Header:
        """Look at a sample on the first rank, and tell the others; what is wrong with it is said before that."""
        if not isinstance(sample, Sample):
            raise SampleError(f"step() takes an hl.Sample, not {type(sample).__name__}: use hl.Sample(u, target)")
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "a step was asked for in inference mode, where nothing can be learned: leave it first"
            )
        if self._align and self.on_nonfinite != "ignore":
            check_input(sample.u, "raise")
        key, fresh = _tree.describe(sample.u), self._engine.fresh
        if self._key not in (None, key) and not fresh and not self._align:
            raise SampleError(
                f"u={key} where samples of {self._key} were shown: keep the batch size; or mark the last sample "
                "of a sequence with boundary=True, or reset()"
            )
        blob = b"" if key == self._key else self._form_of(sample.u)
        header = Header("sample", self.ticks, bool(sample.boundary), sample.tau, fresh)
        with self._together():
            self._headers.send(header, blob)
        self._key = key
        return header

    def _follow(self, sample: Sample | None) -> Header:
        """What the first rank says, told on to the next rank before it is looked at."""
        header, blob = self._headers.receive()
        self._told = header.kind
        if not blob:
            self._headers.send(header)
        if header.kind == "sample":
            header.check(self.ticks, self._engine.fresh, sample)
            if blob:
                self._border.template = template(blob, self._device)
                self._headers.send(header, self._form_of(self._border.template))
        return header

    def _form_of(self, u: Any) -> bytes:
        """Shape and dtype of what this part shows to the next rank for such an input."""
        name, trial = self._part.shown, self._system.wiring.start(u)
        return b"" if name is None else described(trial[name])

    def flush(self) -> list[StepReport]:
        """Aligned: let the samples in flight pass through, without a new one; returns their reports."""
        reports = []
        with self._together():
            while self._align and not self._engine.fresh:
                report = self._progress.show(None, 1)
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

        On the last rank reports hold the outputs and losses; elsewhere `y` and `loss` are `None`. Aligned, they
        come some ticks after their samples, and a finite stream is flushed at its end.

        Args:
            stream: On the first and on the last rank, the same samples; the first looks at u, the last at the
                target. Other ranks read nothing.
            max_steps: How many samples to take at most; the same on every rank.
            resume: Go on where the loaded checkpoint was saved.
            save_to: A folder for checkpoints, which are written while ticks go on.
            save_every: Samples from one checkpoint to the next.
            keep: How many complete checkpoints to keep; `None`: all.
        """
        if stream is None and self.rank in (0, self.ranks - 1):
            raise ConfigError("run() takes a stream on the first and on the last rank")
        if not isinstance(save_every, int) or save_every < 1 or (keep is not None and keep < 1):
            raise ConfigError(f"save_every={save_every!r} and keep={keep!r} must be whole numbers, at least 1")
        return self._run(stream, max_steps, resume, save_to, save_every, keep)

    def _run(
        self, stream: Any, max_steps: int | None, resume: bool, save_to: Any, save_every: int, keep: int | None
    ) -> Iterator[StepReport]:
        with self._together():
            taken = 0
            for report in self._steps(stream, max_steps, resume):
                taken += 1
                self._saving.poll()
                if save_to is not None and self.position % save_every == 0:
                    self.save(save_to, keep=keep, wait=False)
                if report.sample is not None:
                    yield report
            self._saving.finish()
            if self._over(max_steps is None or taken < max_steps):
                yield from self.flush()
            self._settle_sent()

    def _steps(self, stream: Iterable[Sample] | None, max_steps: int | None, resume: bool) -> Iterator[StepReport]:
        if 0 < self.rank < self.ranks - 1:
            if not resume:
                self._reader.progress = type(self._reader.progress)()
            while (report := self._step(None)) is not None:
                self._reader.progress = self._reader.progress.after(1, None)
                yield report
            return
        assert stream is not None
        yield from self._reader.reports(self._shown, stream, max_steps, resume, pending=lambda: 0)

    def _over(self, ended: bool) -> bool:
        """Tell, or learn, whether the stream has ended; the ranks have to agree."""
        if 0 < self.rank < self.ranks - 1:
            return self._told == "end"
        kind: Literal["end", "pause"] = "end" if ended else "pause"
        if self.rank == 0:
            self._headers.send(Header(kind, self.ticks))
            return ended
        if self._follow(None).kind != kind:
            raise StreamError(
                f"the targets came to their {kind} after {self.position} samples, the inputs to something else "
                f"({self._told!r}): give the first and the last rank the same stream and the same max_steps"
            )
        return ended

    def save(self, folder: str | os.PathLike[str], *, keep: int | None = None, wait: bool = True) -> None:
        """Write everything to a new folder in `folder`, named by the tick, on every rank alike.

        Samples in flight, messages between ranks and the streams' positions are part of it. Whoever looks finds
        the checkpoint complete, or not at all. All ranks need the same file system.

        Args:
            folder: Where checkpoints are kept.
            keep: How many complete ones to keep, the oldest are removed; `None`: all.
            wait: Whether to return only when it is complete. Else it is written while ticks go on, and the next
                save, or the end of the run, waits for it.
        """
        with self._together():
            self._engine.settle()
            tensors, about = checkpoints.content(self)
            self._saving.begin(self._own(folder), self.ticks, tensors, about, keep)
            if wait:
                self._saving.finish()
                # Only the first rank marks it complete, and nobody is to look before that.
                self._place.number_from_first(0)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False, drop: bool = False) -> None:
        """Read a checkpoint that any number of ranks wrote; with the same groups, all goes on bit for bit.

        It is read by `torch.distributed.checkpoint`, which unpickles an index: load what you trust.

        Args:
            path: A checkpoint, or the folder of several, of which the newest complete one is taken.
            new_hyper: Accept other hyper-parameters than the checkpoint's.
            drop: Accept other groups, and drop samples in flight and states, which belong to the old ones.
        """
        with self._together():
            self._saving.finish()
            self._engine.settle()
        problem: HamlearnError | None = None
        change = None
        try:
            change = checkpoints.restored(self, Saved(self._own(path)), new_hyper=new_hyper, drop=drop)
        except CheckpointError as error:
            problem = error
        with self._together():
            problem = self._place.agree(problem, {})
        if problem is not None:
            raise problem
        assert change is not None
        with self._together():
            change()

    def resume(self, folder: str | os.PathLike[str]) -> bool:
        """Load the newest complete checkpoint in `folder`, if there is one; then `run(stream, resume=True)`.

        What dead runs have left there half written is removed.
        """
        newest = -1
        with self._together():
            if self.rank == 0:
                sweep(self._own(folder))
                newest = max(
                    (int(path.name.removeprefix("tick-")) for path in complete(self._own(folder))), default=-1
                )
            newest = self._place.number_from_first(newest)
        if newest >= 0:
            self.load(Path(folder) / f"tick-{newest:012d}")
        return newest >= 0

    def _own(self, path: str | os.PathLike[str]) -> Path:
        """Where this replica keeps what is kept at `path`: replicas but the first have folders of their own."""
        path, replica = Path(path), self._place.replica
        if not replica:
            return path
        name = f"replica-{replica}"
        return path.parent / name / path.name if is_checkpoint(path) else path / name

    @torch.no_grad()
    def predict(self, u: Any = None) -> Any:
        """The output for `u`, in evaluation mode, on the last rank; `None` elsewhere. Nothing moves.

        Args:
            u: Looked at on the first rank.
        """
        border, wiring, tick = self._border, self._system.wiring, self.ticks
        with self._together(), evaluating(self.module):
            self._engine.settle()
            if self.rank:
                header, blob = self._headers.receive()
                if header.kind != "predict" or border.states_in is None:
                    raise RankError(
                        f"the first rank sent {header.kind!r}, not a prediction: call predict() on all"
                    )
                form = template(blob, self._device)
                border.states_in.expect(form, tick)
                u = border.states_in.take()
            h = wiring.forward(u)
            name = self._part.shown
            if name is None:
                return self._system.read(h)
            assert border.states_out is not None
            self._headers.send(Header("predict", tick), described(h[name]))
            border.states_out.send(h[name], h[name], tick)
        self._settle_sent()
        return None

    def reset(self) -> None:
        """Forget states and costates of nodes, and samples in flight, on every rank alike. ω, θ and t stay."""
        with self._together():
            self._engine.reset()


def config_of(
    wiring: Wiring, hyper: Hyper, hold: int, align: bool, order: str, on_nonfinite: str
) -> dict[str, Any]:
    """What has to be the same on every rank, and in a checkpoint."""
    named = dict(wiring.root.named_parameters()) | dict(wiring.root.named_buffers())
    return {
        "hamlearn": __version__,
        "torch": str(torch.__version__),
        "parameter or buffer": _checkpoint.layout(named),
        "nodes": {name: list(sources) for name, sources in wiring.sources.items()},
        "hyper": identity(vars(hyper)),
        "hold": hold,
        "align": align,
        "order": order,
        "on_nonfinite": on_nonfinite,
    }
