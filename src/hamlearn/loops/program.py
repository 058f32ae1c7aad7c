"""A whole loop over time in C: from the graph of one step, with what it carries, reads and yields."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx

from hamlearn.loops.operations import apply
from hamlearn.loops.pointwise import HEAVY
from hamlearn.loops.values import C_TYPES, UnsupportedError, Value
from hamlearn.loops.writer import Writer

Kind = Literal["carry", "sample", "constant"]
PREFIX = {"carry": "c", "sample": "s", "constant": "k"}
ALIGNMENT = 64
LONG = 4 * HEAVY
"""Cost from which a value is put into memory though it is used once: no expression grows without end."""

PRELUDE = """\
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <float.h>
#define LARGEST DBL_MAX
#define LARGESTf FLT_MAX
// Where the C library has them, loops call functions that take a whole vector.
#ifdef VECTOR_MATH
#define VECTOR(name) \
    __attribute__((simd("notinbranch"), const)) double name(double); \
    __attribute__((simd("notinbranch"), const)) float name##f(float);
VECTOR(exp) VECTOR(expm1) VECTOR(log) VECTOR(log1p) VECTOR(tanh) VECTOR(sin) VECTOR(cos) VECTOR(erf)
#endif
// Where a function adds up, the order is free; everywhere else, arithmetic is what it says.
#if defined(__GNUC__) && !defined(__clang__)
#define REORDERED __attribute__((noinline, optimize("associative-math", "no-signed-zeros", "no-trapping-math")))
#else
#define REORDERED
#endif
// Both are computed, and one is taken. A load under a condition would do for C, but not for every compiler: gcc 12
// gives wrong numbers for loops of odd length with such loads.
#define CHOOSE(T) static inline T choose_##T(int c, T a, T b) { return c ? a : b; }
CHOOSE(float) CHOOSE(double) CHOOSE(int64_t) CHOOSE(int32_t) CHOOSE(uint8_t)
static inline int64_t clip(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
#define OUTSIDE(r, b) (r != 0 && (r < 0) != (b < 0))
static inline double modulo(double a, double b) { a = fmod(a, b); return OUTSIDE(a, b) ? a + b : a; }
static inline float modulof(float a, float b) { a = fmodf(a, b); return OUTSIDE(a, b) ? a + b : a; }
static inline int64_t whole_part(int64_t a, int64_t b) { return b ? a / b : 0; }
static inline int64_t whole_modulo(int64_t a, int64_t b) { a = b ? a % b : 0; return OUTSIDE(a, b) ? a + b : a; }
static inline int64_t whole_quotient(int64_t a, int64_t b) { return b ? (a - whole_modulo(a, b)) / b : 0; }
static inline int64_t wrapped(int64_t i, int64_t n) { return clip(i < 0 ? i + n : i, n); }
"""


@dataclass(frozen=True)
class Program:
    """C source of a loop over steps, and the memory it needs.

    Attributes:
        source: Defines `run(steps, groups, carry, samples, constants, results, scratch)`; the carry is updated
            in place.
        scratch: Bytes of working memory.
        constants: Tensors that the graph itself holds, behind those given as constants.
        results: Shape, dtype and whether per member, of each result of a step.
    """

    source: str
    scratch: int
    constants: list[Tensor]
    results: list[tuple[tuple[int, ...], torch.dtype, bool]]


def translate(graph: fx.GraphModule, kinds: Sequence[Kind], laned: Sequence[bool], lanes: int = 1) -> Program:
    """The loop whose step is `graph`.

    Args:
        graph: Takes tensors of the given kinds and returns the new carry, in the carry's order, and then the
            results of the step.
        kinds: What each input of the graph is: carried from step to step, read for each step, or constant.
        laned: Which inputs each member of a population has for itself. The members of a group lie along a last
            axis that the graph does not see; groups lie along a first one, behind that of the steps where there
            is one.
        lanes: Number of members in a group.

    Raises:
        UnsupportedError: If an operation has no loops.
    """
    try:
        return _Translation(graph, list(kinds), list(laned), lanes).program()
    except RecursionError as error:
        raise UnsupportedError("the step is too long a chain of operations") from error


class _Translation:
    def __init__(self, graph: fx.GraphModule, kinds: list[Kind], laned: list[bool], lanes: int) -> None:
        self.module, self.nodes = graph, list(graph.graph.nodes)
        self.kinds, self.laned, self.lanes = kinds, laned, lanes
        self.writer = Writer(lanes)
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

    def program(self) -> Program:
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
                tensor = operator.attrgetter(str(node.target))(self.module).detach().contiguous()
                self.values[node] = self._input("constant", counts["constant"], tensor, False)
                counts["constant"] += 1
                self.constants.append(tensor)
            elif node.op == "call_function":
                self.values[node] = self._settled(node, position, self._call(node))
        results = self._finish()
        return Program(self._source(), self._layout()[1], self.constants, results)

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
        if self.writer.overwrites_itself(value, name):
            return False
        for later in self.nodes[position + 1 :]:
            for arg in later.all_input_nodes:
                known = self.values.get(arg)
                parts = known if isinstance(known, list) else [known]
                if arg is not node and any(isinstance(v, Value) and name in v.leaves for v in parts):
                    return False
        return True

    def _finish(self) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
        described = []
        for number, node in enumerate(self.results):
            value = self._forced(self.values[node], self.lanes > 1)
            self.writer.store(value, into=f"y{number}")
            described.append((value.shape, value.dtype, value.lanes))
        waiting = []
        for number, (node, own) in enumerate(zip(self.carried, self.own, strict=True)):
            value = self.values[node]
            if (value.shape, value.dtype) != (own.shape, own.dtype):
                raise UnsupportedError(
                    f"a carry that turns from {own.dtype} {own.shape} into {value.dtype} {value.shape}"
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
        return (
            f"{PRELUDE}\n{self.writer.functions()}void run(int64_t steps, int64_t groups, void** carry, void** samples, void** constants, "
            "void** results, char* scratch) {\n"
            # A group takes all steps before the next one begins: its weights stay in the cache.
            "for (int64_t group = 0; group < groups; ++group)\n"
            f"for (int64_t step = 0; step < steps; ++step) {{\n{body}\n}}\n}}\n"
        )


def _uses(node: fx.Node) -> int:
    """How many times a node is an argument; one user may take it twice."""
    count = 0

    def look(arg: fx.Node) -> None:
        nonlocal count
        count += arg is node

    for user in node.users:
        fx.node.map_arg((user.args, user.kwargs), look)
    return count
