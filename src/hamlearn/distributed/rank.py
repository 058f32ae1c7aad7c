"""One rank of a pipeline: its part of the graph, its neighbours, and a step that all ranks make together."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hamlearn._base import trees
from hamlearn._base.machine import versions
from hamlearn.distributed.blocked import eager_of
from hamlearn.distributed.bundles import BundleReceiver, BundleSender
from hamlearn.distributed.engines import Border, Engine
from hamlearn.distributed.header import Header, described, template
from hamlearn.distributed.links import COSTATE, STATE, Headers
from hamlearn.distributed.parts import Part
from hamlearn.distributed.place import Place
from hamlearn.distributed.storage import Saving
from hamlearn.engine.setting import no_sample, require_gradients
from hamlearn.engine.ticks.ticker import Ticker, check_input
from hamlearn.errors import ConfigError, HamlearnError, RankError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.local.setting import Settings
from hamlearn.rules.local.costates import dense
from hamlearn.rules.local.wiring import Wiring
from hamlearn.sample import Sample, State, StepReport
from hamlearn.state import checkpoint
from hamlearn.state.identity import identity
from hamlearn.streams.reader import Reader

_SAVING = "saving"
"""What the group of ranks that write a checkpoint is called."""


class Rank(Settings):
    """What a rank holds, and how it takes a sample together with the others."""

    _place: Place
    _average_every: int | None
    _failed: str | None

    def _build(self, part: Part, hyper: Hyper, on_nonfinite: str, config: dict[str, Any]) -> None:
        place, self._part, self._hyper, self.config = self._place, part, hyper, config
        self._system = part.system
        self._device = part.system.theta[0].device
        before, after = (place.peer(place.rank + way, self._device.type) for way in (-1, 1))
        self._border = border = Border()
        if before is not None:
            border.states_in, border.costates_out = BundleReceiver(before, STATE), BundleSender(before, COSTATE)
        if after is not None:
            border.states_out, border.costates_in = BundleSender(after, STATE), BundleReceiver(after, COSTATE)
        # As many samples as are shown in the ticks of one message.
        self._headers = Headers(before, after, max(1, part.every // self._hold))
        self._engine: Engine = eager_of(part, border, align=self._align)
        self._ticker = Ticker(part.system, self._engine, on_nonfinite)
        self._reader = Reader()
        self._key: str | None = None
        self._told: str | None = None
        group = place.group(_SAVING) if place.ranks > 1 else None
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
            if self._failed is not None:
                raise
            self._failed = f"{type(error).__name__}: {error}"
            if "_border" in vars(self):
                self._border.drop()
                self._headers.drop()
            # Neighbours hear of it at once: this rank may have to wait for what others say of a checkpoint. A
            # connection is closed when nothing holds it any more, not even the frames that the error has passed.
            for passed in (error, error.__cause__):
                traceback.clear_frames(passed.__traceback__ if passed is not None else None)
            self._place.close(but=_SAVING)
            cause = self._saving.failure() if isinstance(error, RankError) and "_saving" in vars(self) else None
            self._place.close()
            if cause is not None:
                self._failed = f"{type(cause).__name__}: {cause}"
                raise cause from error
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
    def module(self) -> nn.Module:
        """What is learned; a rank moves the weights of its own groups."""
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
        """Aligned: ticks from a group's computing of a sample to its learning from it, for this rank's groups."""
        if not self._align:
            raise ConfigError(
                "delays are defined for align=True: otherwise a costate meets whatever input is there"
            )
        return {name: self._part.plan.delays(name)[0] for name in self.nodes}

    @property
    def ticks_per_message(self) -> int:
        """Ticks from one message between neighbours to the next, and of delay between two groups."""
        return self._part.every

    @property
    def ticks(self) -> int:
        """Ticks made so far."""
        return self._engine.ticks_made(self._ticker.carry)

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        return self._reader.position

    @property
    def state(self) -> State:
        """Time, h and z by node, and ω by parameter name, of this rank's groups. For all ranks alike."""
        with self._together():
            self._settle()
        now = self._ticker
        h, z = self._engine.by_node(now.carry)
        return State(now.t, h or None, z or None, now.omega_by_name(), now.updates)

    def _settle(self) -> None:
        """Have all that is under way, so that nothing of this learner is anywhere else."""
        self._ticker.carry = self._engine.settle(self._ticker.carry)

    def _settle_sent(self) -> None:
        """Wait until the neighbours have all that was sent: this process may end next."""
        with self._together():
            self._headers.settle()
            self._border.settle()

    def _step(self, sample: Sample | None, ahead: Sequence[Sample] = ()) -> StepReport | None:
        """One step, or `None` where the first rank says that the run is over.

        Args:
            sample: What is shown.
            ahead: On the first rank, samples that are to be shown next, and may be announced together with it.
        """
        if self.rank == 0 and not self._headers.waiting:
            self._announce(sample, ahead)
        with self._together():
            header = self._follow(sample)
            if header.kind != "sample":
                return None
            own = Sample(None, None, header.tau, header.boundary) if sample is None else sample
            report = self._ticker.show(own, self._hold)
            self._average()
        return report if report is not None else StepReport(self._ticker.t, None, None, None)

    @torch.no_grad()
    def _average(self) -> None:
        """θ and ω become the means over all replicas, where there are some and it is time."""
        ticker, place = self._ticker, self._place
        if len(place.pipelines) == 1 or self._average_every is None or ticker.shown % self._average_every:
            return
        omega = [dense(w).clone() for w in ticker.omega]
        place.average([*(w.detach() for w in self._system.theta), *omega])
        ticker.omega = list(omega)

    def _announce(self, sample: Sample | None, ahead: Sequence[Sample]) -> None:
        """Look at a sample on the first rank, and tell the others; what is wrong with it is said before that.

        Of samples to come, those of the same form are told with it, up to one with which something is wrong.
        """
        key, fresh = self._inspected(sample), self._engine.fresh(self._ticker.carry)
        assert sample is not None
        if self._key not in (None, key) and not fresh and not self._align:
            raise SampleError(
                f"u={key} where samples of {self._key} were shown: keep the batch size; or mark the last sample "
                "of a sequence with boundary=True, or reset()"
            )
        blob = b"" if key == self._key else self._form_of(sample.u)
        headers = [Header("sample", self.ticks, bool(sample.boundary), sample.tau, fresh)]
        for other in ahead:
            try:
                if self._inspected(other) != key:
                    break
            except HamlearnError:  # it is said when its turn comes
                break
            tick = self.ticks + len(headers) * self._hold
            headers.append(Header("sample", tick, bool(other.boundary), other.tau))
        with self._together():
            self._headers.send(headers, blob)
        self._key = key
        self._headers.waiting.extend(headers)

    def _inspected(self, sample: Sample | None) -> str:
        """The form of a sample's input; raises where the sample cannot be shown."""
        if not isinstance(sample, Sample):
            raise no_sample(sample)
        require_gradients()
        if self._align and self.on_nonfinite != "ignore":
            check_input(sample.u, "raise")
        return trees.describe(sample.u)

    def _follow(self, sample: Sample | None) -> Header:
        """The next thing to do, as the first rank says."""
        waiting = self._headers.waiting
        if not waiting:
            self._hear()
        header = waiting.popleft()
        self._told = header.kind
        if sample is not None and self.rank and header.kind == "sample":
            header.check_sample(sample)
        return header

    def _hear(self) -> None:
        """What the first rank says, told on to the next rank before it is looked at."""
        headers, blob = self._headers.receive()
        if not blob:
            self._headers.send(headers)
        if headers[0].kind == "sample":
            headers[0].check(self.ticks, self._engine.fresh(self._ticker.carry))
            if blob:
                self._border.template = template(blob, self._device)
                self._headers.send(headers, self._form_of(self._border.template))
        self._headers.waiting.extend(headers)

    def _form_of(self, u: Any) -> bytes:
        """Shape and dtype of what this part shows to the next rank for such an input."""
        name, trial = self._part.shown, self._system.wiring.start(u)
        return b"" if name is None else described(trial[name])


def config_of(
    wiring: Wiring, hyper: Hyper, hold: int, align: bool, order: str, on_nonfinite: str, ticks_per_message: int = 1
) -> dict[str, Any]:
    """What has to be the same on every rank, and in a checkpoint."""
    named = dict(wiring.root.named_parameters()) | dict(wiring.root.named_buffers())
    return {
        **{name: versions()[name] for name in ("hamlearn", "torch")},
        "parameter or buffer": checkpoint.layout(named),
        "nodes": {name: list(sources) for name, sources in wiring.sources.items()},
        "hyper": identity(vars(hyper)),
        "hold": hold,
        "align": align,
        "order": order,
        "on_nonfinite": on_nonfinite,
        "ticks_per_message": ticks_per_message,
    }
