"""Aligned learning: every node at work on another sample, each costate met by the input of its own sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn._base.claims import Tensors, record, whole
from hamlearn._base.scale import is_one
from hamlearn.errors import ConfigError, SampleError
from hamlearn.orders.local.flights import Flight, Line, Pipe, Tick, own_copy
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.nodes import Cell
from hamlearn.orders.local.outer import Outer
from hamlearn.orders.local.proposal import Done, Proposal, add_at
from hamlearn.orders.local.saved_flights import check, dump, restore
from hamlearn.orders.local.schedule import Timetable, schedule
from hamlearn.orders.local.stacked import LayerStack
from hamlearn.rates import Rates
from hamlearn.sample import Sample


class Aligned:
    """A pipeline over an acyclic graph that takes a new sample at every tick.

    Samples in flight carry their own states and costates from node to node, which is what delay lines at the
    nodes and registers on skip edges hold. A costate loses τη_z of itself with every edge that it passes.
    """

    ticks = 1

    def __init__(self, system: LocalSystem, plan: Timetable | None = None) -> None:
        if system.hyper.s != -1:
            raise ConfigError("s=+1 lets costates grow forward in time: an aligned learner takes s=-1 only")
        self.system = system
        self.schedule: Timetable = plan or schedule(system)
        self.number = 0
        self.flights: dict[int, Flight] = {}
        self.pipes: dict[str, Pipe] = {}
        self._key: str | None = None
        self._trial: dict[str, Tensor] = {}
        self._fits: str | None = None

    def own(self, sample: Sample) -> Sample:
        """What ticks may keep of a sample, which stays in flight long after its own step: a copy."""
        return own_copy(sample)

    def begin(self, u: Any) -> None:
        """A trial pass for each new shape of input, so that what does not fit is known before it enters."""
        key = trees.describe(u)
        if key != self._key:
            trial = self.system.wiring.start(u)
            for name, pipe in self.pipes.items() if self.flights else ():
                if trial[name].shape != pipe.h.shape[1:]:
                    raise SampleError(
                        f"u={key} leads to {list(trial[name].shape)} in node {name!r}, where samples of "
                        f"{list(pipe.h.shape[1:])} are in flight: flush() before the batch size changes, or pass "
                        "stacked=False"
                    )
            self._key, self._trial, self._fits = key, trial, None
        for cell in () if self.flights else self.system.cells:
            if isinstance(cell, LayerStack):
                self._lay(cell, cell.start(self._trial))

    def _lay(self, stack: LayerStack, h: Tensor) -> None:
        # A stack that leads to no output never learns, and needs no past.
        known = stack.name in self.schedule.backward
        delays = self.schedule.delays(stack.name) if known else [0] * stack.length
        self.pipes = self.pipes | {stack.name: Pipe(h, torch.zeros_like(h[1:]), Line(stack, h, delays))}

    def reset(self) -> None:
        """Drop all samples in flight."""
        self.flights, self.pipes = {}, {}

    def tick(self, sample: Sample | None, t: float, rates: Rates, *, last: bool, given: Sample | None) -> Proposal:
        """One tick of all nodes, each with a sample of its own; `None` lets those in flight move on.

        A boundary means nothing: in a graph without cycles samples do not see each other.
        """
        flights = dict(self.flights)
        if sample is not None:
            self.check_target(sample)
            values = self.system.wiring.values(sample.u)
            flights[self.number] = Flight(sample, t, rates.stride, last, values, given=given)
        tick = Tick(self.number, flights, rates, [None] * len(self.system.theta))
        self.states_arrive(tick)
        for cell in self.system.cells:
            self._forward(tick, cell)
        self.states_leave(tick)
        loss = self._losses(tick)
        self.costates_arrive(tick)
        for cell in self.system.cells:
            if cell.name in self.schedule.backward:
                self._backward(tick, cell)
        self.costates_leave(tick)
        done = self._done(tick)
        h = [*tick.h.values(), *(pipe.h for pipe in tick.pipes.values())]
        z = [*tick.z.values(), *(pipe.z for pipe in tick.pipes.values())]
        for entry, L in tick.losses.items():
            before = flights[entry].loss
            tick.losses[entry] = L if before is None else before + L
        return Proposal(tick.grads, h, z, loss, loss is not None, lambda: self._commit(tick), done)

    def states_arrive(self, tick: Tick) -> None:
        """A part of a graph: give samples in flight the states that its neighbours computed in the tick before."""

    def states_leave(self, tick: Tick) -> None:
        """A part of a graph: hand on the states that this tick has computed."""

    def costates_arrive(self, tick: Tick) -> None:
        """A part of a graph: as `states_arrive`, for costates."""

    def costates_leave(self, tick: Tick) -> None:
        """A part of a graph: as `states_leave`, for costates."""

    def pass_back(self, tick: Tick, entry: int, parent: str, message: Tensor) -> None:
        """Hand a costate to the node that is to learn from it; a part of a graph may let it travel longer."""
        tick.send(entry, parent, message)

    def check_target(self, sample: Sample) -> None:
        """Try the loss on a blank output: a target that does not fit must not enter and fail many ticks later."""
        targets = self.system.targets(sample.target)
        key = f"{self._key} {trees.describe(targets)}"
        if targets and key != self._fits:
            self.system.compare({name: self._trial[name] for name in targets}, targets)
            # Real numbers of a shape that fits always fit; classes may be out of range.
            real = all(isinstance(x, Tensor) and x.is_floating_point() for x in targets.values())
            self._fits = key if real else None

    def _forward(self, tick: Tick, cell: Cell | LayerStack) -> None:
        entry, flight = tick.at(self.schedule.forward[cell.name])
        if isinstance(cell, Cell):
            if flight is not None:
                draws = cell.draws()
                if draws is not None:
                    tick.draws[entry, cell.name] = draws
                tick.h[entry, cell.name] = cell.forward([flight.h[source] for source in cell.sources])
            return
        pipe = self.pipes[cell.name]
        incoming = torch.zeros_like(pipe.h[0]) if flight is None else flight.h[cell.sources[0]]
        x = cell.gather(pipe.h, [incoming])
        pipe.line.write(tick.number, x[0])
        h = cell.forward(x)
        tick.pipes[cell.name] = Pipe(h, pipe.z, pipe.line)
        entry, flight = tick.at(self.schedule.shown(cell.name))
        if flight is not None:
            tick.h[entry, cell.name] = h[-1]

    def _losses(self, tick: Tick) -> Tensor | None:
        total = None
        for name in self.system.wiring.outputs:
            entry, flight = tick.at(self.schedule.shown(name) + self.schedule.lag)
            if flight is None:
                continue
            h = tick.h[entry, name] if self.schedule.lag == 0 else flight.h[name]
            L, dL = self.system.losses({name: h}, flight.sample.target)
            if L is not None:
                tick.send(entry, name, (flight.stride * tick.rates.phi) * dL[name])
                tick.losses[entry] = tick.losses[entry] + L if entry in tick.losses else L
                total = L if total is None else total + L
        return total

    def _backward(self, tick: Tick, cell: Cell | LayerStack) -> None:
        entry, flight = tick.at(self.schedule.backward[cell.name])
        z = None if flight is None else tick.z.get((entry, cell.name), flight.z.get(cell.name))
        keep = 1 - tick.rates.stride * tick.rates.eta_z
        increments: Sequence[Tensor | Outer]
        if isinstance(cell, Cell):
            if flight is None or z is None:
                return
            inputs = [flight.h[source] for source in cell.sources]
            draws = flight.draws.get(cell.name, tick.draws.get((entry, cell.name)))
            messages, increments = cell.again(inputs, draws, z)
        else:
            pipe = tick.pipes[cell.name]
            arrived = torch.zeros_like(pipe.h[0]) if z is None else z
            trace = cell.trace([pipe.line.read(tick.number)])
            messages, increments = trace.both(cell.join(self.pipes[cell.name].z, arrived))
            inside, messages = cell.scatter(messages)
            assert inside is not None
            tick.pipes[cell.name] = Pipe(pipe.h, inside if is_one(keep) else keep * inside, pipe.line)
            entry = tick.number - self.schedule.first(cell.name)
        add_at(tick.grads, cell.slots, increments)
        if entry in tick.flights:
            for parent, message in zip(cell.parents, messages, strict=True):
                self.pass_back(tick, entry, parent, message if is_one(keep) else keep * message)

    def _done(self, tick: Tick) -> Done | None:
        outputs = self.system.wiring.outputs
        if not outputs:
            return None
        entry, flight = tick.at(max(map(self.schedule.shown, outputs)) + self.schedule.lag)
        if flight is None or not flight.reported:
            return None
        h = {name: tick.h.get((entry, name), flight.h.get(name)) for name in outputs}
        losses = [x for x in (flight.loss, tick.losses.get(entry)) if x is not None]
        loss = losses[0] + losses[1] if len(losses) == 2 else (losses[0] if losses else None)
        return Done(flight.given or flight.sample, flight.t, self.system.read(h), loss)  # type: ignore[arg-type]

    def _commit(self, tick: Tick) -> None:
        flights = tick.flights
        flights.pop(tick.number + 1 - self.schedule.horizon, None)
        for written, place in ((tick.h, "h"), (tick.z, "z"), (tick.draws, "draws")):
            for (entry, name), value in written.items():
                if entry in flights:
                    getattr(flights[entry], place)[name] = value
        for entry, loss in tick.losses.items():
            if entry in flights:
                flights[entry].loss = loss
        self.flights, self.pipes, self.number = flights, self.pipes | tick.pipes, tick.number + 1

    def snapshot(self, *, ticks: int) -> Any:
        """What `restore` takes; ticks that are taken write to samples in flight and to lines, hence copies."""
        flights, pipes = self.flights, self.pipes
        if ticks > 1:
            flights = {entry: flight.copy() for entry, flight in flights.items()}
            pipes = {n: replace(p, line=p.line.copy()) for n, p in pipes.items()}
        return self.number, flights, pipes, self._key, self._trial, self._fits

    def restore(self, snapshot: Any) -> None:
        """Return to an earlier moment."""
        self.number, self.flights, self.pipes, self._key, self._trial, self._fits = snapshot

    def by_node(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node, of the samples that the nodes are at; nodes without one are missing."""
        h: dict[str, Tensor] = {}
        z: dict[str, Tensor] = {}
        for cell in self.system.cells:
            if isinstance(cell, LayerStack) and cell.name in self.pipes:
                h |= dict(zip(cell.names, self.pipes[cell.name].h, strict=True))
                z |= dict(zip(cell.names[:-1], self.pipes[cell.name].z, strict=True))
            shown = self.flights.get(self.number - 1 - self.schedule.shown(cell.name))
            if shown is not None and cell.name in shown.h:
                h[cell.name] = shown.h[cell.name]
            due = self.flights.get(self.number - self.schedule.backward.get(cell.name, 0))
            if due is not None and cell.name in due.z:
                z[cell.name] = due.z[cell.name]
        return h, z

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a checkpoint has to hold: tensors, and the rest."""
        tensors, flights = dump(self.flights, self.system.wiring.inputs)
        for name, pipe in self.pipes.items():
            tensors |= {f"pipe/{name}/h": pipe.h, f"pipe/{name}/z": pipe.z, f"pipe/{name}/line": pipe.line.slots}
        return tensors, {"number": self.number, "flights": flights}

    def load(self, tensors: Tensors, header: Any) -> None:
        """Take what a checkpoint held, if it can have been saved here; raises `ValueError` where it cannot."""
        about = record(header, "the pipeline", "number", "flights")
        self.number, self.pipes = whole(about["number"], "the number of ticks"), {}
        device = self.system.theta[0].device
        for cell in self.system.cells:
            if isinstance(cell, LayerStack) and f"pipe/{cell.name}/h" in tensors:
                h = tensors.keep(f"pipe/{cell.name}/h", device)
                cell.check(h)
                self._lay(cell, h)
                pipe = self.pipes[cell.name]
                pipe.z = tensors.keep(f"pipe/{cell.name}/z", device, pipe.z)
                pipe.line.slots = tensors.keep(f"pipe/{cell.name}/line", device, pipe.line.slots)
        self.flights = restore(tensors, about["flights"], self.system.wiring.values, device)
        tensors.done()
        for entry, flight in self.flights.items():
            trial = self.system.wiring.start(flight.sample.u)
            check(entry, flight, self.number - entry, self.schedule, self.system, trial)
            for cell in self.system.cells:
                fits = cell.name in self.pipes and self.pipes[cell.name].h.shape[1:] == trial[cell.name].shape
                if isinstance(cell, LayerStack) and not fits:
                    raise ValueError(f"the samples in flight do not fit what is held at node {cell.name!r}")
            self._key, self._trial = trees.describe(flight.sample.u), trial
            self.check_target(flight.sample)
