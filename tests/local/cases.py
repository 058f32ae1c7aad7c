"""Graphs of every kind, and the same graphs as one whole network for the reference to judge by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import hamlearn as hl
from hamlearn.local import Graph, LocalLearner, Neurons
from tests.comparing import same

KINDS = ("chain", "long chain", "skips", "cyclic", "outputs", "neurons", "sparse neurons")


class Add(nn.Module):
    """A residual sum of two inputs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a + b)


class Two(nn.Module):
    """A layer of two inputs."""

    def __init__(self, first: int, second: int, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(first, size)
        self.second = nn.Linear(second, size, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.first(a) + self.second(b))


def layer(inputs: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, size), nn.Tanh())


def chain(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(layer(a, b) for a, b in pairwise(sizes)))


def skips() -> Graph:
    nodes = {"a": layer(3, 4), "b": layer(4, 4), "c": layer(4, 4), "add": Add(), "out": Two(4, 3, 2)}
    edges = [("u", "a"), ("a", "b"), ("b", "c"), ("c", "add"), ("a", "add"), ("add", "out"), ("u", "out")]
    return Graph(nodes, edges)


def make(kind: str) -> nn.Module:
    if kind == "chain":
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    if kind == "long chain":
        return chain(3, 4, 4, 4, 4, 2)
    if kind == "skips":
        return skips()
    if kind == "cyclic":
        nodes = {"a": Two(3, 4, 5), "b": layer(5, 4), "c": Two(4, 2, 2)}
        edges = [("u", "a"), ("b", "a"), ("a", "b"), ("b", "c"), ("c", "c")]
        start = {"b": lambda u: u.new_full((*u.shape[:-1], 4), 0.3), "c": lambda u: u.new_zeros(*u.shape[:-1], 2)}
        return Graph(nodes, edges, outputs=["c"], h0=start)
    if kind == "outputs":
        nodes = {"a": layer(3, 4), "b": Two(4, 2, 2), "c": layer(2, 2)}
        edges = [("u", "a"), ("a", "b"), ("v", "b"), ("b", "c")]
        return Graph(nodes, edges, inputs=["u", "v"], outputs=["a", "c"])
    adjacency = torch.rand(7, 7) < 0.4
    return Neurons(adjacency.to_sparse() if kind.startswith("sparse") else adjacency, inputs=3, outputs=[6, 2])


class Whole(nn.Module):
    """All nodes of a graph in one module: ĥ as a mapping, every node from the h of the tick before."""

    def __init__(self, module: nn.Module, active: list[str] | None = None) -> None:
        super().__init__()
        self.module = module
        self.kappa = 0
        self.active = active

    def sources(self) -> dict[str, tuple[str, ...]]:
        if isinstance(self.module, Graph):
            return self.module.sources
        if isinstance(self.module, Neurons):
            return {"neurons": ("u", "neurons")}
        names = [name for name, _ in self.module.named_children()]
        return {name: (source,) for name, source in zip(names, ["u", *names], strict=False)}

    def node(self, name: str) -> nn.Module:
        if isinstance(self.module, Neurons):
            return self.module
        return self.module.nodes[name] if isinstance(self.module, Graph) else getattr(self.module, name)

    def forward(self, u: Any, h: dict[str, Tensor]) -> dict[str, Tensor]:
        values = (u if isinstance(u, dict) else {"u": u}) | h
        moving = self.sources() if self.active is None else [self.active[self.kappa % len(self.active)]]
        self.kappa += 1
        new = {n: self.node(n)(*(values[s] for s in self.sources()[n])) for n in moving}
        return {n: new.get(n, h[n]) for n in h}

    def start(self, u: Any) -> dict[str, Tensor]:
        given = self.module.h0 if isinstance(self.module, Graph) else {}
        if isinstance(self.module, Neurons):
            given = {"neurons": lambda u: u.new_zeros(*u.shape[:-1], self.module.size)}
        known = {n: f(u) for n, f in given.items()}
        values = (u if isinstance(u, dict) else {"u": u}) | known
        waiting = [n for n in self.sources() if n not in known]
        while waiting:
            name = next(n for n in waiting if all(s in values for s in self.sources()[n]))
            values[name] = self.node(name)(*(values[s] for s in self.sources()[name]))
            known[name] = torch.zeros_like(values[name])
            waiting.remove(name)
        return {n: known[n].detach() for n in self.sources()}


class Read(nn.Module):
    """The output nodes."""

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        module = whole.module
        self.neurons = module.outputs if isinstance(module, Neurons) else None
        self.names = module.outputs if isinstance(module, Graph) else [list(whole.sources())[-1]]

    def forward(self, u: Any, h: dict[str, Tensor]) -> Any:
        if self.neurons is not None:
            return h["neurons"][..., list(self.neurons)]
        y = {n: h[n] for n in self.names}
        return y if len(y) > 1 else y[self.names[0]]


def whole_network(module: nn.Module, active: list[str] | None = None) -> hl.Network:
    """`module` as the state net of one network, for `hamlearn.reference`."""
    whole = Whole(module, active)
    return hl.Network(whole, Read(whole), h0=whole.start, transition="next")


def mse(y: Any, target: Any) -> Tensor:
    if isinstance(y, dict):
        return sum(nn.functional.mse_loss(y[n], t) for n, t in target.items())
    return nn.functional.mse_loss(y, target)


def samples(kind: str, count: int, batch: tuple[int, ...] = (3,)) -> list[hl.Sample]:
    """Uneven τ, missing targets, a boundary now and then."""
    result = []
    for k in range(count):
        u: Any = torch.randn(*batch, 3)
        target: Any = torch.randn(*batch, 2)
        if kind == "outputs":
            u = {"u": u, "v": torch.randn(*batch, 2)}
            target = {"a": torch.randn(*batch, 4), "c": target}
            if k % 3 == 1:
                del target["a"]
        tau = None if k % 2 else 0.3 + 0.5 * torch.rand(()).item()
        result.append(hl.Sample(u, None if k % 5 == 3 else target, tau=tau, boundary=k % 37 == 36))
    return result


def hyper(names: list[str], s: int = -1, clock: Any = "events") -> hl.Hyper:
    """Schedules, and one β of its own for the first weight."""
    return hl.Hyper(
        tau=0.7,
        eta=lambda t: 0.2 + 0.1 * math.sin(t) ** 2,
        eta_z=0.15,
        phi=lambda t: 0.5 + 1 / (1 + t),
        phi_first=1.5,
        s=s,
        beta={names[0]: 0.02, "*": lambda t: 0.05 / (1 + 0.01 * t)},
        clock=clock,
    )


def everything(learner: Any) -> list[Any]:
    """All that a learner is, with the modes of its modules: to be compared by `same`."""
    state = learner.state_dict()
    modes = [module.training for module in learner.module.modules()]
    return [state["about"], *modes, torch.is_grad_enabled(), *sorted(state["tensors"].items())]


def assert_alike(eager: LocalLearner, other: LocalLearner, close: float = 1e-12) -> None:
    """Both engines have led to the same weights, costates, states and place in the stream."""
    for name, omega in eager.state.omega.items():
        assert (omega - other.state.omega[name]).abs().max() < close, name
    pairs = zip(eager.module.state_dict().items(), other.module.state_dict().values(), strict=True)
    assert all((a - b).abs().max() < close for (_, a), b in pairs)
    assert (eager.state.t, eager.state.updates, eager.position) == (
        other.state.t,
        other.state.updates,
        other.position,
    )
    for ours, theirs in ((eager.state.h, other.state.h), (eager.state.z, other.state.z)):
        assert (ours is None) == (theirs is None)
        for name in {*(ours or ()), *(theirs or ())}:
            # Compiled, a sample without a target has costates of 0, and eagerly none.
            pair = [part.get(name, torch.zeros(())) for part in (ours, theirs)]
            assert (pair[0] - pair[1]).abs().max() < close, name


def assert_reports(theirs: Iterable[Any], ours: Iterable[Any], close: float = 1e-12) -> None:
    """Both engines have reported the same."""
    for a, b in zip(theirs, ours, strict=True):
        assert a.t == b.t
        assert (a.loss is None) == (b.loss is None)
        assert same(a.sample.u, b.sample.u)
        assert (a.y is None) == (b.y is None)
        if isinstance(a.y, dict):
            assert all((a.y[n] - b.y[n]).abs().max() < close for n in a.y)
        elif a.y is not None:
            assert (a.y - b.y).abs().max() < close
        if a.loss is not None:
            assert abs(a.loss - b.loss) < close
        assert abs(float(a.hamiltonian) - float(b.hamiltonian)) <= close * max(1.0, abs(float(a.hamiltonian)))
