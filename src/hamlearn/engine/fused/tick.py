"""Ticks of all groups over memory that stays in one place, recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hamlearn.engine.fused.fit import Group
from hamlearn.loops import UnsupportedError
from hamlearn.loops.capture import capture
from hamlearn.rules.local.losses import without_graph

AT_ONCE = 32
"""Ticks in the longest graph; shorter stretches take graphs of 16, 8, 4, 2 and 1."""
RATES = 5
"""Columns of the rates before the scales of the slots: κ_h, κ_m, κ_z, κ_d and the decay of ω."""

PLACES = 2**31
"""Numbers that the messages of one group may have, since kernels count their places by integers of 32 bits."""

Launch = Callable[["Ticks", "Held", int], None]


@dataclass
class Held:
    """What one group holds from tick to tick; states and costates twice, as found and as left.

    Attributes:
        group: The layers.
        tile: Rows of a layer that one program takes.
        tiles: Programs of one layer.
        omega: ω of W and b.
        h: States, (2, layers, rows).
        z: Costates likewise.
        parts: Messages to the layers' inputs by tile, (2, layers, tiles, columns).
        coupling: ⟨z, ĥ − h⟩ by tick and program.
        line: Aligned: past inputs, (ticks, layers, columns).
        delays: Aligned: ticks from computing to learning, by layer.
        before: The group that this one reads; `None`: the input.
        behind: The group that reads this one; `None`: the loss.
    """

    group: Group
    tile: int
    tiles: int
    omega: list[Tensor]
    h: Tensor
    z: Tensor
    parts: Tensor
    coupling: Tensor
    line: Tensor | None
    delays: Tensor | None
    before: Held | None = None
    behind: Held | None = None

    def state(self) -> list[Tensor]:
        """What `Undo` has to keep, but for the weights."""
        return [*self.omega, self.h[0], self.z[0], *([] if self.line is None else [self.line])]


class Ticks:
    """Ticks of a chain of groups, `AT_ONCE` of them at most in one call.

    Args:
        groups: The chain.
        lead: Shape of a batch of one, without the features.
        target: Shape and dtype of a target, without time.
        loss: `mse_loss` or `cross_entropy`.
        delays: Aligned: by group and layer, ticks from computing to learning.
        launch: Makes one tick of a group.
        tile_rows: Rows of a layer that one program takes, from rows and columns.

    Raises:
        UnsupportedError: Where the messages of a group are too many for the kernels.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        lead: tuple[int, ...],
        target: tuple[tuple[int, ...], torch.dtype],
        loss: object,
        delays: Sequence[Sequence[int]] | None,
        launch: Launch,
        tile_rows: Callable[[int, int], int],
    ) -> None:
        first, last = groups[0].weight, groups[-1].weight
        make = partial(torch.zeros, dtype=first.dtype, device=first.device)
        self.lead, self.launch = lead, launch
        self.of_targets = target
        self.target_shape, target_dtype = target
        self._loss = without_graph(loss)
        slots = sum(len(group.slots) for group in groups)
        # Rows begin at multiples of 16 bytes, for kernels that do not depend on the tick's number.
        self.rates = make(AT_ONCE, -(-(RATES + slots) // 4) * 4)
        self.u = make(AT_ONCE, first.shape[2])
        self.target = torch.zeros(AT_ONCE, *self.target_shape, dtype=target_dtype, device=first.device)
        self.y = make(AT_ONCE, last.shape[1])
        self.loss = make(AT_ONCE)
        self.dl = make(2, last.shape[1])
        self.bad = torch.zeros(AT_ONCE, 4, dtype=torch.int32, device=first.device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=first.device)
        self.held: list[Held] = []
        for index, group in enumerate(groups):
            layers, rows, columns = group.weight.shape
            tile = tile_rows(rows, columns)
            tiles = -(-rows // tile)
            if layers * tiles * columns >= PLACES:
                raise UnsupportedError(
                    f"{layers} layers of {rows} by {columns} would send more than {PLACES:,} numbers in a tick"
                )
            ages = None if delays is None else delays[index]
            held = Held(
                group,
                tile,
                tiles,
                [torch.zeros_like(w) for w in (group.weight, group.bias) if w is not None],
                make(2, layers, rows),
                make(2, layers, rows),
                make(2, layers, tiles, columns),
                make(AT_ONCE, -(-layers * tiles // 4) * 4),
                None if ages is None else make(max(ages) + 1, layers, columns),
                None if ages is None else torch.tensor(ages, device=first.device),
            )
            if self.held:
                held.before, self.held[-1].behind = self.held[-1], held
            self.held.append(held)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._side: list[torch.cuda.Stream] = []

    def run(self, count: int) -> None:
        """Take the ticks of the first `count` rows, a power of two; states are left where they were found."""
        if not self.u.is_cuda:
            self._ticks(count)
            return
        if count not in self._graphs:
            self._graphs[count] = self._recorded(count)
        self._graphs[count].replay()

    def shaped(self, x: Tensor) -> Tensor:
        """A copy of (…, layers, n) in the shape that the eager cell has, with the axes of a batch."""
        return x.clone().view(*x.shape[:-1], *self.lead, x.shape[-1])

    def settle_costates(self, factors: tuple[float, float, float]) -> None:
        """Z of the tick to come, of which the messages have been sent: κ_m·messages + κ_z·z, and κ_d·∂L/∂y."""
        k_m, k_z, k_d = factors
        found = []
        for held in self.held:
            messages = torch.zeros_like(held.z[0])
            if len(messages) > 1:
                messages[:-1] = held.parts[0, 1:].sum(1)
                messages[:-1] += held.z[0, 1:] if held.group.residual else 0
            if held.behind is not None:
                messages[-1] = held.behind.parts[0, 0].sum(0)
                if held.behind.group.residual:
                    messages[-1] += held.behind.z[0, 0]
            z = k_m * messages
            if k_z:
                z += k_z * held.z[0]
            if held.behind is None and k_d:
                z[-1] += k_d * self.dl[0]
            found.append(z)
        for held, z in zip(self.held, found, strict=True):
            held.z[0] = z

    def _ticks(self, count: int) -> None:
        self.bad.zero_()
        for k in range(count):
            self._tick(k)
        if count % 2:
            for pair in [self.dl, *(x for held in self.held for x in (held.h, held.z, held.parts))]:
                pair[0] = pair[1]
        self.clock += count

    def _tick(self, k: int) -> None:
        """All groups and the loss: none of them reads what another one writes, so that all may run at once."""
        if not self.u.is_cuda:
            self._compare(k)
            for held in self.held:
                self.launch(self, held, k)
            return
        main = torch.cuda.current_stream()
        while len(self._side) < min(4, len(self.held)):
            self._side.append(torch.cuda.Stream())
        for stream in self._side:
            stream.wait_stream(main)
        # The longest work comes first and stays on the main stream.
        order = sorted(self.held, key=lambda held: -held.group.weight.numel())
        self.launch(self, order[0], k)
        with torch.cuda.stream(self._side[0]):
            self._compare(k)
        for number, held in enumerate(order[1:]):
            with torch.cuda.stream(self._side[number % len(self._side)]):
                self.launch(self, held, k)
        for stream in self._side:
            main.wait_stream(stream)

    def _compare(self, k: int) -> None:
        """Y and L of the state that the tick begins with, and ∂L/∂y for the tick after it."""
        now, after = k % 2, (k + 1) % 2
        torch.mul(self.held[-1].h[now, -1], self.rates[k, 0], out=self.y[k])
        y = self.y[k].view(*self.lead, -1)
        assert self._loss is not None
        pair = self._loss(y, self.target[k])
        assert pair is not None
        self.loss[k] = pair[0]
        self.dl[after] = pair[1].view(-1)

    def _recorded(self, count: int) -> torch.cuda.CUDAGraph:
        if not self._graphs:
            self._warm_up()
        graph = torch.cuda.CUDAGraph()
        with capture(graph):
            self._ticks(count)
        return graph

    def _warm_up(self) -> None:
        """Compile and load all that a graph calls, by ticks that move no weight; the rest is put back."""
        kept = [(x, x.clone()) for held in self.held for x in held.state()]
        kept += [(x, x.clone()) for x in (self.rates, self.u, self.target, self.clock)]
        self.rates.zero_()
        self.rates[:, RATES - 1] = 1.0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for k in range(4):
                self._tick(k)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in kept:
            tensor.copy_(value)
