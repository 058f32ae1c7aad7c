"""A whole loop over time in C: from the graph of one step, with what it carries, reads and yields."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from hamlearn.loops import blas
from hamlearn.loops.operations import apply
from hamlearn.loops.pointwise import HEAVY
from hamlearn.loops.prelude import PRELUDE
from hamlearn.loops.values import C_TYPES, UnsupportedError, Value
from hamlearn.loops.writer import ALIGNMENT, Writer

Kind = Literal["carry", "sample", "constant"]
PREFIX = {"carry": "c", "sample": "s", "constant": "k"}
LONG = 4 * HEAVY
"""Cost from which a value is put into memory though it is used once: no expression grows without end."""


@dataclass(frozen=True)
class Program:
    """C source of a loop over steps, and the memory it needs.

    Attributes:
        source: Defines `run(steps, first, last, groups, carry, samples, constants, results, scratch)`, which
            takes the groups from `first` up to `last` of all `groups`; the carry is updated
            in place.
        scratch: Bytes of working memory.
        lanes: Number of members in a group.
        products: C types of which a BLAS multiplies matrices.
        constants: Tensors that the graph itself holds, behind those given as constants.
        results: Shape, dtype and whether per member, of each result of a step.
    """

    source: str
    scratch: int
    lanes: int
    products: frozenset[str]
    constants: list[Tensor]
    results: list[tuple[tuple[int, ...], torch.dtype, bool]]


def translate(graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], lanes: int = 1) -> Program:
    """The loop whose step is `graph`.

    Args:
        graph: Takes tensors of the given kinds and returns the new carry, in the carry's order, and then the
            results of the step.
        kinds: What each input of the graph is: carried from step to step, read for each step, or constant.
        laned: Which inputs each member of a population has for itself. The members of a group lie along a last
            axis that the graph does not see; groups lie along a first one, behind that of the steps if there
            is one.
        lanes: Number of members in a group.

    Raises:
        UnsupportedError: If an operation has no loops.
    """
    try:
        return _InC(graph, list(kinds), list(laned), Writer(lanes)).program()
    except RecursionError as error:
        raise UnsupportedError("the step is too long a chain of operations") from error


class Translation:
    """A walk through the graph of a step, which leaves the step's nests with the writer.

    Args:
        graph: The step, as `translate` takes it.
        kinds: What each input is.
        laned: Which inputs each member of a group has for itself.
        writer: Takes the nests.
    """

    def __init__(self, graph: fx.GraphModule, kinds: list[Kind], laned: list[bool], writer: Writer) -> None:
        self.module, self.nodes = graph, list(graph.graph.nodes)
        self.kinds, self.laned, self.lanes = kinds, laned, writer.lanes
        self.writer = writer
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[tuple[str, Value, int]] = []
        self.constants: list[Tensor] = []
        given = self.nodes[-1].args[0]
        outputs = list(given) if isinstance(given, (list, tuple)) else [given]
        if not all(isinstance(output, fx.Node) for output in outputs):
            raise UnsupportedError("a step that returns anything but tensors has no loops")
        carried = kinds.count("carry")
        self.carried: list[fx.Node] = outputs[:carried]
        self.results: list[fx.Node] = outputs[carried:]

    def walk(self) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
        """Give the writer all nests of a step; shape, dtype and whether per member, of each result."""
        counts = {"carry": 0, "sample": 0, "constant": 0}
        given = iter(zip(self.kinds, self.laned, strict=True))
        for node in self.nodes:
            if node.op == "placeholder":
                kind, laned = next(given)
                self.values[node] = self._input(kind, counts[kind], node.meta["val"], laned)
                counts[kind] += 1
        self.own = [value for name, value, _ in self.inputs if name[0] == PREFIX["carry"]]
        for position, node in enumerate(self.nodes):
            if node.op == "get_attr":
                tensor = operator.attrgetter(str(node.target))(self.module)
                self.values[node] = self._input("constant", counts["constant"], tensor, False)
                counts["constant"] += 1
                self.constants.append(tensor)
            elif node.op == "call_function":
                self.writer.replaces = self._replaced(node, position)
                self.values[node] = self._settled(node, position, self._call(node))
                self.writer.replaces = None
        return self._finish()

    def _input(self, kind: str, number: int, tensor: Tensor, laned: bool) -> Value:
        if tensor.dtype not in C_TYPES:
            raise UnsupportedError(f"an input of {tensor.dtype} has no loops")
        name = f"{PREFIX[kind]}{number}"
        value = self.writer.in_memory(name, tuple(tensor.shape), tensor.dtype, laned and self.lanes > 1)
        self.inputs.append((name, value, number))
        return value

    def _call(self, node: fx.Node) -> Any:
        take = lambda arg: fx.node.map_arg(arg, self.values.__getitem__)  # noqa: E731
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
        return apply(self.writer, node, list(take(node.args)), dict(take(node.kwargs)))

    def _replaced(self, node: fx.Node, position: int) -> str | None:
        """The carry that a write by index replaces, if its old value is used for nothing else."""
        base = node.args[0] if node.args else None
        written = getattr(node.target, "overloadpacket", None) is torch.ops.aten.index_put
        if not (written and self.writer.on_cpu and node in self.carried and isinstance(base, fx.Node)):
            return None
        value, name = self.values[base], f"c{self.carried.index(node)}"
        others = [self.values[arg] for arg in node.all_input_nodes if arg is not base]
        if value.memory != name or _times(node, base) > 1 or any(name in other.leaves for other in others):
            return None
        # What was computed from the old carry may not be in memory yet: now is the time, if it is less.
        waiting = self._readers(name, node, position)
        for value in (self.values[reader] for reader in waiting):
            if not isinstance(value, Value) or value.memory is not None or value.numel >= self.values[base].numel:
                return None
        for reader in waiting:
            self.values[reader] = self.writer.store(self.values[reader])
        return name

    def _settled(self, node: fx.Node, position: int, value: Any) -> Any:
        """The value, put into memory where it is the new carry, is used more than once or has become long."""
        if not isinstance(value, Value):
            return value
        if node in self.carried and value.memory is None:
            number = self.carried.index(node)
            own, name = self.own[number], f"c{number}"
            fits = (value.shape, value.dtype, self.lanes > 1) == (own.shape, own.dtype, own.lanes)
            if fits and self._may_replace(name, node, position, value):
                return self.writer.store(self._forced(value, own.lanes), into=name)
        if value.cost and (value.cost > LONG or _uses(node) > 1):
            return self.writer.store(value)
        return value

    def _may_replace(self, name: str, node: fx.Node, position: int, value: Value) -> bool:
        """Whether nothing needs the old carry any more."""
        return not (self.writer.overwrites_itself(value, name) or self._readers(name, node, position))

    def _readers(self, name: str, node: fx.Node, position: int) -> list[fx.Node]:
        """Nodes that are computed already, are needed later, and read the old carry."""
        found: dict[fx.Node, None] = {}
        for later in self.nodes[position + 1 :]:
            for arg in later.all_input_nodes:
                known = self.values.get(arg)
                parts = known if isinstance(known, list) else [known]
                if arg is not node and any(isinstance(v, Value) and name in v.leaves for v in parts):
                    found[arg] = None
        return list(found)

    def _finish(self) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
        described = []
        for number, node in enumerate(self.results):
            value = self._forced(self.values[node], self.lanes > 1)
            self.writer.store(value, into=f"y{number}")
            described.append((value.shape, value.dtype, value.lanes))
        waiting = []
        for node, own in zip(self.carried, self.own, strict=True):
            value = self.values[node]
            if (value.shape, value.dtype) != (own.shape, own.dtype):
                raise UnsupportedError(
                    f"a carry of {own.dtype} {own.shape} that becomes {value.dtype} {value.shape} has no loops"
                )
            if value.memory == own.memory:
                continue
            if self.lanes > 1 and not own.lanes:
                raise UnsupportedError("a carry that all members share and that changes has no loops")
            # Other carries are about to change: what is computed from them is put aside first.
            if value.memory is None or value.memory[0] == PREFIX["carry"]:
                value = self.writer.store(self._forced(value, own.lanes))
            waiting.append((own.memory, self._forced(value, own.lanes)))
        for name, value in waiting:
            self.writer.store(value, into=name)
        return described

    def _forced(self, value: Value, lanes: bool) -> Value:
        if value.lanes == lanes:
            return value
        if not lanes:
            raise UnsupportedError("a value that all members share depends on one of them")
        return Value(value.shape, value.dtype, True, value.at, value.cost, value.leaves)


class _InC(Translation):
    def program(self) -> Program:
        results = self.walk()
        products = frozenset(self.writer.products)
        return Program(self._source(), self._layout()[1], self.lanes, products, self.constants, results)

    def _layout(self) -> tuple[list[str], int]:
        lines, offset = [], 0
        for name, dtype, count in self.writer.memory:
            c_type = C_TYPES[dtype]
            lines.append(f"{c_type}* __restrict {name} = ({c_type}*)(scratch + {offset});")
            offset += -(-dtype.itemsize * count // ALIGNMENT) * ALIGNMENT
        return lines, offset

    def _source(self) -> str:
        arrays = {"c": "carry", "s": "samples", "k": "constants", "y": "results"}
        tensors = [(name, value.dtype, value.numel, value.lanes, number) for name, value, number in self.inputs]
        for number, node in enumerate(self.results):
            value = self.values[node]
            tensors.append((f"y{number}", value.dtype, value.numel, True, number))
        pointers = []
        for name, dtype, size, laned, number in tensors:
            row = "step" if name[0] in "sy" else "0"
            if laned:
                row, size = f"({row} * groups + group)", size * self.lanes
            c_type = C_TYPES[dtype]
            pointers.append(
                f"{c_type}* __restrict {name} = ({c_type}*){arrays[name[0]]}[{number}] + {row} * {size};"
            )
        lines, _ = self._layout()
        body = "\n".join([*pointers, *lines, self.writer.text()])
        products = "".join(f"PRODUCT({c_type})\n" for c_type in sorted(self.writer.products))
        return (
            f"{PRELUDE}\n{blas.FUNCTION + products if products else ''}{self.writer.functions()}"
            "void run(int64_t steps, int64_t first, int64_t last, int64_t groups, "
            "void** carry, void** samples, void** constants, void** results, char* scratch) {\n"
            # A group takes all steps before the next one begins: its weights stay in the cache.
            "for (int64_t group = first; group < last; ++group)\n"
            f"for (int64_t step = 0; step < steps; ++step) {{\n{body}\n}}\n}}\n"
        )


def _uses(node: fx.Node) -> int:
    """How many times a node is an argument; one user may take it twice."""
    return sum(_times(user, node) for user in node.users)


def _times(user: fx.Node, node: fx.Node) -> int:
    """How many times a node is an argument of another one."""
    count = 0

    def look(arg: fx.Node) -> None:
        nonlocal count
        count += arg is node

    fx.node.map_arg((user.args, user.kwargs), look)
    return count
