"""The networks that cases are drawn from, by name. The same name and seed give the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hamlearn as hl
from tests.fuzz import modules as m
from tests.fuzz.parts import CLASSES, INPUTS, OUTPUTS, SIZE, Parts, general, output_net, recurrent, state_net

Maker = Callable[[tuple[int, ...], int], Parts]
ZOO: dict[str, Maker] = {}


def entry(name: str) -> Callable[[Maker], Maker]:
    def keep(make: Maker) -> Maker:
        ZOO[name] = make
        return make

    return keep


def simple(name: str, make: Callable[[], Parts]) -> None:
    ZOO[name] = lambda batch, variant: make()


def mlp(inputs: int = INPUTS, outputs: int = OUTPUTS) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, SIZE), nn.Tanh(), nn.Linear(SIZE, outputs))


def tied(size: int) -> nn.Sequential:
    twice = nn.Linear(size, size)
    return nn.Sequential(twice, nn.Tanh(), twice)


class First:
    """A first state as a function of u that can be copied and pickled."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, u: torch.Tensor) -> object:
        fast, slow = (torch.full((*u.shape[:-1], n), 0.1 * n, dtype=u.dtype) for n in (SIZE, 2))
        if self.kind == "dict":
            return {"fast": fast, "slow": slow}
        if self.kind == "equal":
            return {"a": fast, "b": 2 * fast}
        if self.kind == "tuple":
            return (fast, slow)
        if self.kind == "nested":
            return {"a": (fast, {"b": slow})}
        if self.kind == "named":
            return m.Pair(fast, slow)
        return torch.full((*u.shape[:-1], SIZE), 0.1, dtype=u.dtype)


simple("linear", lambda: output_net(nn.Linear(INPUTS, OUTPUTS)))
simple("mlp", lambda: output_net(mlp()))
simple("classifier", lambda: output_net(mlp(outputs=CLASSES), target="class"))
simple("state", lambda: state_net(mlp(), None, OUTPUTS))
simple(
    "split", lambda: state_net(nn.Sequential(nn.Linear(INPUTS, SIZE), nn.Tanh()), nn.Linear(SIZE, OUTPUTS), SIZE)
)
simple("rnn", lambda: recurrent(nn.RNNCell(INPUTS, SIZE), nn.Linear(SIZE, OUTPUTS)))
simple("gru", lambda: recurrent(nn.GRUCell(INPUTS, SIZE), nn.Linear(SIZE, OUTPUTS)))
simple("lstm", lambda: recurrent(nn.LSTMCell(INPUTS, SIZE), nn.Linear(SIZE, OUTPUTS), lambda h: h[0]))
simple("rnn classes", lambda: recurrent(nn.RNNCell(INPUTS, SIZE), nn.Linear(SIZE, CLASSES), target="class"))
simple("rate", lambda: general(m.Rate(), m.Both(), First("plain")))
simple("dict", lambda: general(m.DictState(True), m.Both(SIZE + 2), First("dict")))
simple("dict next", lambda: general(m.DictState(False), m.Both(SIZE + 2), First("dict"), "next"))
simple("keys in another order", lambda: general(m.EqualDict(), m.Both(2 * SIZE), First("equal"), "next"))
simple("keys in another order, rate", lambda: general(m.EqualDict(), m.Both(2 * SIZE), First("equal")))
simple("tuple", lambda: general(m.TupleState(True), m.Both(SIZE + 2), First("tuple")))
simple("nested", lambda: general(m.NestedState(False), m.Both(SIZE + 2), First("nested"), "next"))
simple("namedtuple", lambda: general(m.NamedState(True), m.Both(SIZE + 2), First("named")))
simple("tied", lambda: output_net(tied(INPUTS), target=(INPUTS,)))
simple("tied state", lambda: state_net(tied(INPUTS), nn.Linear(INPUTS, OUTPUTS), INPUTS))
simple("tied rate", lambda: general(m.TiedRate(), m.Both(), First("plain")))
simple("tied readout", lambda: recurrent(nn.RNNCell(INPUTS, SIZE), tied(SIZE), target=(SIZE,)))
simple("conv", lambda: output_net(conv(), feed=(1, 3, 3), batches=((1,), (2,))))
simple("conv1d", lambda: output_net(conv1d(), feed=(2, 5), batches=((1,), (2,))))
simple("attention", lambda: output_net(m.Attention(), feed=(3, INPUTS)))
simple("encoder", lambda: output_net(encoder(), feed=(3, SIZE), target=(3, SIZE), batches=((1,), (2,))))
simple("embedding", lambda: output_net(m.Embedded(), feed=5, target="class"))
simple("padded embedding", lambda: output_net(m.Embedded(True), feed=5, target="class"))
simple(
    "sparse embedding",
    lambda: output_net(m.Embedded(sparse=True), feed=5, target="class", traits=frozenset({"may be refused"})),
)
simple("one-hot", lambda: output_net(m.OneHot(), feed=5, target="class"))
simple("table", lambda: output_net(m.Table(), feed=5, target="class"))
simple("scatter", lambda: output_net(m.Scatter(), feed=5, target="class"))
simple("indexed", lambda: output_net(m.Indexed(), feed=5, target="class"))
simple("embedded rnn", lambda: embedded_rnn())
simple("branches", lambda: output_net(m.Branches()))
simple("python random", lambda: output_net(m.PythonRandom(), traits=frozenset({"python"})))
simple("stack", lambda: stack())
simple("columnar gru", lambda: columns(hl.cells.ColumnarGRU(INPUTS, SIZE)))
simple("rtu", lambda: columns(hl.cells.RTU(INPUTS, SIZE)))
simple("lru", lambda: columns(hl.cells.LRU(INPUTS, SIZE)))
simple("columns of one's own", lambda: columns(m.Columns()))


def conv() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, OUTPUTS))


def conv1d() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(9, OUTPUTS))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(SIZE, 2, SIZE, dropout=0.0, batch_first=True)


def embedded_rnn() -> Parts:
    cell = m.EmbeddedCell()
    return recurrent(cell, nn.Linear(SIZE, CLASSES), h0=lambda u: cell.initial_state(u), feed=5, target="class")


def stack() -> Parts:
    cell, head = hl.cells.Stack(nn.LSTMCell(INPUTS, SIZE), nn.GRUCell(SIZE, 2)), nn.Linear(2, OUTPUTS)
    return recurrent(cell, head, visible=cell.visible, h0=lambda u: cell.initial_state(u))


def columns(cell: Any) -> Parts:
    """A cell of independent units; of a state of several slots the readout sees all, side by side."""
    visible = getattr(cell, "visible", None)
    shown = SIZE * (1 if visible is None else 2)
    given = {} if visible is None else {"visible": visible}
    start = {"h0": lambda u: cell.initial_state(u)}
    return recurrent(cell, nn.Linear(shown, OUTPUTS), **given, **start, traits=frozenset({"columns"}))


@entry("shared parameter")
def shared_parameter(batch: tuple[int, ...], variant: int) -> Parts:
    cell, head = m.Rate(), nn.Linear(SIZE, SIZE, bias=False)
    head.weight = cell.recurrent.weight
    return general(cell, m.Readout(head), First("plain"), target=(SIZE,))


@entry("shared within")
def shared_within(batch: tuple[int, ...], variant: int) -> Parts:
    net = nn.Sequential(nn.Linear(INPUTS, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE))
    net[3].weight = net[2].weight
    return output_net(net, target=(SIZE,))


@entry("frozen")
def frozen(batch: tuple[int, ...], variant: int) -> Parts:
    cell = nn.GRUCell(INPUTS, SIZE)
    cell.weight_hh.requires_grad_(False)
    return recurrent(cell, nn.Linear(SIZE, OUTPUTS))


@entry("learned start")
def learned_start(batch: tuple[int, ...], variant: int) -> Parts:
    start = nn.Parameter(torch.randn(SIZE))
    cell, head = nn.RNNCell(INPUTS, SIZE), nn.Linear(SIZE, OUTPUTS)
    return recurrent(cell, head, h0=lambda u: start.expand(*u.shape[:-1], SIZE), given_h0=start, learned_h0=start)


@entry("given start")
def given_start(batch: tuple[int, ...], variant: int) -> Parts:
    start = torch.randn(*batch, SIZE)
    return general(m.Rate(), m.Both(), start, batches=(batch,))


@entry("batch norm")
def batch_norm(batch: tuple[int, ...], variant: int) -> Parts:
    net = nn.Sequential(nn.Linear(INPUTS, SIZE), nn.BatchNorm1d(SIZE), nn.Tanh(), nn.Linear(SIZE, OUTPUTS))
    return output_net(net, batches=((4,),), traits=frozenset({"buffers"}))


@entry("batch norm rnn")
def batch_norm_rnn(batch: tuple[int, ...], variant: int) -> Parts:
    readout = nn.Sequential(nn.BatchNorm1d(SIZE), nn.Linear(SIZE, OUTPUTS))
    return recurrent(nn.RNNCell(INPUTS, SIZE), readout, batches=((4,),), traits=frozenset({"buffers"}))


@entry("counter")
def counter(batch: tuple[int, ...], variant: int) -> Parts:
    return output_net(m.Counter(INPUTS, OUTPUTS), traits=frozenset({"buffers"}))


@entry("counter rnn")
def counter_rnn(batch: tuple[int, ...], variant: int) -> Parts:
    return recurrent(nn.RNNCell(INPUTS, SIZE), m.Counter(SIZE, OUTPUTS), traits=frozenset({"buffers"}))


@entry("dropout")
def dropout(batch: tuple[int, ...], variant: int) -> Parts:
    return output_net(m.Drop(INPUTS, OUTPUTS), traits=frozenset({"random"}))


@entry("dropout rnn")
def dropout_rnn(batch: tuple[int, ...], variant: int) -> Parts:
    return recurrent(nn.RNNCell(INPUTS, SIZE), m.Drop(SIZE, OUTPUTS), traits=frozenset({"random"}))


@entry("gain")
def gain(batch: tuple[int, ...], variant: int) -> Parts:
    net = m.Gain(INPUTS, OUTPUTS, m.GAINS[variant % len(m.GAINS)])
    return output_net(net, traits=frozenset({"gain"}))


@entry("gain rnn")
def gain_rnn(batch: tuple[int, ...], variant: int) -> Parts:
    net = m.Gain(SIZE, OUTPUTS, m.GAINS[variant % len(m.GAINS)])
    return recurrent(nn.RNNCell(INPUTS, SIZE), net, traits=frozenset({"gain"}))


@entry("hook")
def hook(batch: tuple[int, ...], variant: int) -> Parts:
    net, scale = mlp(), m.ScaleHook()
    net[0].register_forward_hook(scale)
    return output_net(net, traits=frozenset({"hook"}))


@entry("grows")
def grows(batch: tuple[int, ...], variant: int) -> Parts:
    return output_net(m.Grows(("list", "number")[variant % 2]), traits=frozenset({"python"}))


@entry("operations")
def operations(batch: tuple[int, ...], variant: int) -> Parts:
    names, chosen = list(m.OPERATIONS), []
    state = variant * 2654435761 % 2**32
    for _ in range(2):
        chosen.append(names[state % len(names)])
        state //= len(names)
    return output_net(m.Chain(tuple(chosen)))


def make(name: str, seed: int, batch: tuple[int, ...], variant: int, dtype: torch.dtype) -> Parts:
    """The network of that name, made from scratch."""
    torch.manual_seed(seed)
    parts = ZOO[name](batch, variant)
    for module in parts.modules():
        module.to(dtype)
    if parts.learned_h0 is not None:
        parts.learned_h0.data = parts.learned_h0.data.to(dtype)
    return parts


NAMES = tuple(ZOO)


def turn(network: nn.Module, value: float) -> None:
    """Change what a network reads from Python: attributes of its modules."""
    for module in network.modules():
        if isinstance(module, m.Gain):
            module.turn(value)
