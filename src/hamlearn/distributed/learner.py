"""The pipeline learner: groups of nodes on ranks, all at work in every tick."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from hamlearn._base.replay import evaluating
from hamlearn.distributed.header import Header, described, template
from hamlearn.distributed.parts import part_of
from hamlearn.distributed.place import find_place
from hamlearn.distributed.rank import config_of
from hamlearn.distributed.saved_rank import SavedRank
from hamlearn.errors import ConfigError, HamlearnError, RankError, SampleError, StreamError
from hamlearn.hyper import Hyper
from hamlearn.local.setting import check_setting
from hamlearn.rules.local.local_system import Losses, OrderName
from hamlearn.rules.local.wiring import Groups, wire
from hamlearn.sample import Sample, StepReport


class PipelineLearner(SavedRank):
    """`LocalLearner` over the ranks of `torch.distributed`: every group of nodes at work in every tick.

    The equations are those of `LocalLearner`, and so are the results, bit for bit: what a group needs in a tick,
    its neighbours computed in the tick before, so that states travel forward and costates back while a tick is
    being computed. No rank ever waits for a bubble to pass. The results depend on the groups, not on how many
    ranks share them.

    Every method is to be called on every rank alike. Input enters at the first rank, targets at the last, and
    outputs and losses are reported there. An error on one rank ends the pipeline on all of them, each with an
    error of its own, within `timeout`: resume from a checkpoint.

    With `ticks_per_message` = K, neighbours exchange one message for K ticks: K states forward, K costates back.
    What a group computes then reaches the next one K ticks later, on the same rank too, so that the results are
    those of a `LocalLearner` with K − 1 times `nn.Identity` between every two groups, each a node of its own. A
    costate still meets the input of its own sample, and a sample is in flight about K times as long.

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
        ticks_per_message: Ticks from one message between ranks to the next, and of delay between two groups. More
            than 1 is for small layers, where a message takes longer than a tick, and needs `align=True`.

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
        order: OrderName = "parallel",
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        *,
        mesh: DeviceMesh | None = None,
        average_every: int | None = None,
        timeout: float = 60.0,
        ticks_per_message: int = 1,
    ) -> None:
        self._place = place = find_place(mesh, timeout)
        self._average_every = average_every
        self._hold, self._align, self._delay_free = hold, align, False
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
            check_ticks_per_message(ticks_per_message, align)
            wiring = wire(module, place.ranks if groups is None else groups)
            config = config_of(wiring, hyper, hold, align, order, on_nonfinite, ticks_per_message)
            part = part_of(wiring, place.rank, place.ranks, loss, hyper, order, ticks_per_message)
        except ConfigError as error:
            problem = error
        with self._together():
            problem = place.agree(problem, config | {"weights": _digest(module)})
            if problem is not None:
                raise problem
        assert part is not None
        self._build(part, hyper, on_nonfinite, config)

    def step(self, sample: Sample | None = None) -> StepReport:
        """Show one sample for `hold` ticks, on every rank alike.

        With `ticks_per_message` = K, states and costates still go once for K ticks, in whichever step the K-th
        tick falls; but every sample is announced by itself, so that `run` takes less time.

        Args:
            sample: On the first rank what is shown, on the last one its target (with the same tau and boundary; u
                is not looked at). Other ranks may leave it out.
        """
        if sample is None and self.rank in (0, self.ranks - 1):
            raise SampleError("step() was given no sample: it takes one on the first and on the last rank")
        self._check_idle()
        report = self._shown(sample)
        self._settle_sent()
        return report

    def _check_idle(self) -> None:
        """Raise where a run has stopped between samples that the first rank announced in one message."""
        waiting = len(self._headers.waiting)
        if waiting:
            raise StreamError(
                f"a run of this learner was left while {waiting} samples are announced that it has not shown: go "
                "on with it, or close() it on every rank, before step() or another run"
            )

    def _shown(self, sample: Sample | None, ahead: Sequence[Sample] = ()) -> StepReport:
        report = self._step(sample, ahead)
        if report is None:
            raise StreamError("the first rank has ended its run: call step() or run() on every rank alike")
        return report

    def flush(self) -> list[StepReport]:
        """Aligned: let the samples in flight pass through, without a new one; returns their reports."""
        reports = []
        with self._together():
            while self._align and not self._engine.fresh(self._ticker.carry):
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

        On the last rank reports hold the outputs and losses; elsewhere `y` and `loss` are `None`. Aligned, they
        come some ticks after their samples, and a finite stream is flushed at its end.

        With `ticks_per_message` = K and several ranks, the first rank reads the samples of K ticks, K/`hold` of
        them and at least one, before it shows the first of these: of a live feed (`hl.streams.live`) those that
        have arrived, of a generator all of them, for which it waits. A checkpoint may fall between them: it knows
        the place of the last sample that was shown.

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
        self._check_idle()
        with self._together():
            taken = 0
            try:
                for report in self._steps(stream, max_steps, resume):
                    taken += 1
                    self._saving.poll()
                    if save_to is not None and self.position % save_every == 0:
                        self.save(save_to, keep=keep, wait=False)
                    if report.sample is not None:
                        yield report
            finally:
                # A run that is left early is left on every rank.
                self._headers.waiting.clear()
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
        if self.rank == 0 and self.ranks > 1 and self._headers.room > 1:
            yield from self._steps_ahead(stream, max_steps, resume)
        else:
            yield from self._reader.reports(self._shown, stream, max_steps, resume, pending=lambda: 0)

    def _steps_ahead(self, stream: Iterable[Sample], max_steps: int | None, resume: bool) -> Iterator[StepReport]:
        """On the first rank: the samples of one message are read, and told to the others, before any is shown."""
        reader, room, done = self._reader, self._headers.room, 0
        turn = reader.open_blocks(stream, resume)
        try:
            while max_steps is None or done < max_steps:
                reader.check_turn(turn)
                block = reader.peek(room if max_steps is None else min(room, max_steps - done))
                if block is None:
                    reader.end(0)
                    return
                samples = [block.sample(index) for index in range(block.count)]
                for index, sample in enumerate(samples):
                    done += 1
                    yield reader.counted(partial(self._shown, ahead=samples[index + 1 :]), sample)
        finally:
            reader.close(turn)

    def _over(self, ended: bool) -> bool:
        """Tell, or learn, whether the stream has ended; the ranks have to agree."""
        if 0 < self.rank < self.ranks - 1:
            return self._told == "end"
        kind: Literal["end", "pause"] = "end" if ended else "pause"
        if self.rank == 0:
            self._headers.send([Header(kind, self.ticks)])
            return ended
        if self._follow(None).kind != kind:
            raise StreamError(
                f"the targets came to their {kind} after {self.position} samples, the inputs to something else "
                f"({self._told!r}): give the first and the last rank the same stream and the same max_steps"
            )
        return ended

    @torch.no_grad()
    def predict(self, u: Any = None) -> Any:
        """The output for `u`, in evaluation mode, on the last rank; `None` elsewhere. Nothing moves.

        Args:
            u: Looked at on the first rank.
        """
        border, wiring, tick = self._border, self._system.wiring, self.ticks
        with self._together(), evaluating(self.module):
            self._settle()
            if self.rank:
                (header, *_), blob = self._headers.receive()
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
            self._headers.send([Header("predict", tick)], described(h[name]))
            border.states_out.send(h[name], h[name], tick)
        self._settle_sent()
        return None

    def reset(self) -> None:
        """Forget states and costates of nodes, and samples in flight, on every rank alike. ω, θ and t stay."""
        with self._together():
            self._ticker.drop()


def check_ticks_per_message(ticks: object, align: bool) -> None:
    """Raise unless neighbours can exchange one message for so many ticks."""
    if not isinstance(ticks, int) or isinstance(ticks, bool) or ticks < 1:
        raise ConfigError(f"ticks_per_message={ticks!r} must be a number of ticks, 1 or more")
    if ticks > 1 and not align:
        raise ConfigError(
            f"ticks_per_message={ticks} needs align=True: without it a costate is exchanged within the tick that "
            "computes it, and cannot wait for others. Give align=True, or leave ticks_per_message at 1"
        )


def _digest(module: nn.Module) -> str:
    """Tells first weights from others: ranks that began with different ones would make a network of both."""
    total = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if not tensor.is_meta:
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
