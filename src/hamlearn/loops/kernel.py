"""A whole loop over time in CUDA: one kernel, in which a block of threads takes all steps of one network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from hamlearn.loops.levels import Job, levels, split_folds
from hamlearn.loops.places import Held, Places, place
from hamlearn.loops.prelude import CUDA_PRELUDE
from hamlearn.loops.program import PREFIX, Kind, Translation
from hamlearn.loops.threads import function, used
from hamlearn.loops.values import C_TYPES, UnsupportedError
from hamlearn.loops.writer import Writer

THREADS = 256
SHARED = 227 * 1024
"""Bytes of shared memory that a block may have on Hopper."""
MOST = 1 << 22
"""Terms and elements of a step that one block of threads takes faster than a launch of many blocks each."""
FAR = 4096
"""Bytes from which it matters how a piece in global memory is read."""


@dataclass(frozen=True)
class Kernel:
    """CUDA source of a loop over steps, and what a launch of it needs.

    Attributes:
        source: Defines the kernel `run(given, steps, groups, scratch)`, where `given` is a structure of pointers to
            carries, samples, constants and results, in this order; one block per member. What a compiler for
            CUDA knows by itself, or a stand-in for it, has to stand in front.
        threads: Threads of a block.
        shared: Bytes of dynamic shared memory.
        scratch: Bytes of global memory for each block.
        lanes: Number of members in a group.
        constants: Tensors that the graph itself holds, behind those given as constants.
        results: Shape and dtype of each result of a step.
    """

    source: str
    threads: int
    shared: int
    scratch: int
    lanes: int
    constants: list[Tensor]
    results: list[tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class _Given:
    """A tensor that is handed to the kernel: the name's number in the list of pointers, and where a row begins."""

    name: str
    dtype: torch.dtype
    count: int
    laned: bool
    number: int

    @property
    def c_type(self) -> str:
        return C_TYPES[self.dtype]

    @property
    def held(self) -> Held:
        return Held(self.name, self.count * self.dtype.itemsize, self.count)


def translate_to_cuda(
    graph: fx.GraphModule,
    kinds: Sequence[Kind],
    laned: Sequence[bool],
    lanes: int = 1,
    threads: int = THREADS,
    shared: int = SHARED,
) -> Kernel:
    """The kernel whose step is `graph`.

    Args:
        graph: The step, as `translate` takes it.
        kinds: What each input of the graph is.
        laned: Which inputs each member of a population has for itself.
        lanes: Number of members in a group.
        threads: Threads of a block, a power of two.
        shared: Bytes of shared memory that a block may have.

    Raises:
        UnsupportedError: If an operation has no loops, or a step is too large for one block.
    """
    try:
        return _InCuda(graph, list(kinds), list(laned), lanes, threads, shared).kernel()
    except RecursionError as error:
        raise UnsupportedError("the step is too long a chain of operations") from error


class _InCuda(Translation):
    """Members are no axis of the nests here: each block has its own, and only finds them in other places."""

    def __init__(
        self,
        graph: fx.GraphModule,
        kinds: list[Kind],
        laned: list[bool],
        lanes: int,
        threads: int,
        shared: int,
    ) -> None:
        super().__init__(graph, kinds, [False] * len(kinds), Writer(vectors=False))
        self.own_lanes, self.width, self.threads, self.limit = laned, lanes, threads, shared

    def kernel(self) -> Kernel:
        described = [(shape, dtype) for shape, dtype, _ in self.walk()]
        self.given = self._given(described)
        nests = split_folds(self.writer, self.writer.nests, self.threads)
        self.levels = levels(nests)
        self._require_few(nests)
        own = [Held(name, dtype.itemsize * count, count) for name, dtype, count in self.writer.memory]
        samples = [g.held for g in self.given if g.name[0] == PREFIX["sample"]]
        others = [g.held for g in self.given if g.name[0] in (PREFIX["carry"], PREFIX["constant"])]
        self.places = place(self.levels, own, samples, others, self.threads, self.limit)
        written = {name for level in self.levels for job in level for name in job.written}
        for given in self.given:
            if given.name[0] == PREFIX["carry"] and self.width > 1 and not given.laned and given.name in written:
                raise UnsupportedError("a carry that all members share and that changes has no loops")
        source = _Text(self, written).source()
        places = self.places
        return Kernel(
            source, self.threads, places.shared_size, places.scratch_size, self.width, self.constants, described
        )

    def _given(self, results: list[tuple[tuple[int, ...], torch.dtype]]) -> list[_Given]:
        laned = [*self.own_lanes, *[False] * len(self.constants)]
        listed = [
            _Given(name, value.dtype, value.numel, own and self.width > 1, 0)
            for (name, value, _), own in zip(self.inputs, laned, strict=True)
        ]
        ordered = [given for letter in "csk" for given in listed if given.name[0] == letter]
        ordered += [
            _Given(f"y{k}", dtype, math.prod(shape), self.width > 1, 0) for k, (shape, dtype) in enumerate(results)
        ]
        return [_Given(g.name, g.dtype, g.count, g.laned, number) for number, g in enumerate(ordered)]

    def _require_few(self, nests: Sequence) -> None:
        work = 0
        for nest in nests:
            sizes = nest.sizes if nest.folding is None else (*nest.folding.sizes, *nest.folding.lengths)
            work += math.prod(sizes)
        if work > MOST:
            raise UnsupportedError(f"a step of {work:,} terms and elements is too large for one block of threads")


class _Text:
    def __init__(self, made: _InCuda, written: set[str]) -> None:
        self.levels, self.given, self.places = made.levels, made.given, made.places
        self.threads, self.width, self.types = made.threads, made.width, made.writer.types
        self.by_name = {given.name: given for given in made.given}
        self.changed = [g for g in made.given if g.name[0] == PREFIX["carry"] and g.name in written]
        self.samples = [g for g in made.given if g.name[0] == PREFIX["sample"] and g.count]

    def source(self) -> str:
        functions, calls, number = [], [], 0
        for level in self.levels:
            behind = 0
            for job in level:
                wide = any(self._far(name) for name in job.nest.touched)
                parameters = [f"{self._type(name)} {name}" for name in job.touched]
                functions.append(function(f"n{number}", job, parameters, self.threads, wide))
                thread = f"(thread + {self.threads - behind}) % {self.threads}" if behind else "thread"
                calls.append(f"n{number}({', '.join([thread, *job.touched])});")
                behind = (behind + used(job, self.threads, wide)) % self.threads
                number += 1
            calls.append("__syncthreads();")
        return "\n".join(
            [
                f"{CUDA_PRELUDE}struct Given {{ void* at[{max(len(self.given), 1)}]; }};",
                *functions,
                f'extern "C" __global__ void __launch_bounds__({self.threads}) run(',
                "const Given given, const int64_t steps, const int64_t groups, unsigned char* const scratch) {",
                f"const int thread = threadIdx.x, group = blockIdx.x / {self.width}, l = blockIdx.x % {self.width};",
                *self._kept(),
                "__syncthreads();",
                "for (int64_t step = 0; step < steps; ++step) {",
                *self._of_step(),
                *self._ahead(),
                *(calls[:-1] if calls else []),
                *self._arrived(),
                "__syncthreads();",
                "}",
                *self._returned(),
                "}\n",
            ]
        )

    def _far(self, name: str) -> bool:
        if name in self.places.shared:
            return False
        given = self.by_name.get(name)
        return given is None or given.held.size >= FAR

    def _apart(self, name: str) -> bool:
        """Whether the elements are found in global memory, apart from each other."""
        given = self.by_name.get(name)
        return given is not None and given.laned and name not in self.places.shared

    def _type(self, name: str) -> str:
        c_type = C_TYPES[self.types[name]] if name in self.types else self.by_name[name].c_type
        return f"const Apart<{c_type}, {self.width}>" if self._apart(name) else f"{c_type}* __restrict__"

    def _row(self, given: _Given, step: str) -> str:
        """Where a tensor's elements for a step begin, for this block's member."""
        row = step if given.name[0] in "sy" else "0"
        size = given.count
        if given.laned:
            return f"({given.c_type}*)given.at[{given.number}] + ({row} * groups + group) * {size * self.width} + l"
        return f"({given.c_type}*)given.at[{given.number}] + {row} * {size}"

    def _step_of(self, given: _Given) -> int:
        return self.width if given.laned else 1

    def _kept(self) -> list[str]:
        """Memory that is there for all steps, with what it begins with."""
        lines = []
        for name, offset in self.places.shared.items():
            c_type = C_TYPES[self.types[name]]
            if name[0] == PREFIX["sample"]:
                lines.append(f"{c_type}* const {name}_both = ({c_type}*)(shared + {offset});")
                continue
            lines.append(f"{c_type}* const {name} = ({c_type}*)(shared + {offset});")
            if name in self.by_name:
                lines.append(self._copied(self.by_name[name], name, "{0}", f"({self._row(self.by_name[name], '0')})[{{1}}]"))
        for name, offset in self.places.scratch.items():
            c_type = C_TYPES[self.types[name]]
            block = f"scratch + (int64_t)blockIdx.x * {self.places.scratch_size}"
            lines.append(f"{c_type}* const {name} = ({c_type}*)({block} + {offset});")
        for given in self.given:
            if given.name[0] in "ck" and given.name not in self.places.shared:
                lines.append(self._pointer(given, "0"))
        for given in self.samples:
            if given.name in self.places.shared:
                lines.append(self._copied(given, f"{given.name}_both", "{0}", f"({self._row(given, '0')})[{{1}}]"))
        return lines

    def _copied(self, given: _Given, into: str, index: str, source: str) -> str:
        at = source.replace("{1}", f"(int64_t)e * {self._step_of(given)}")
        return f"for (int e = thread; e < {given.count}; e += {self.threads}) {into}[{index.replace('{0}', 'e')}] = {at};"

    def _pointer(self, given: _Given, step: str) -> str:
        start = self._row(given, step)
        if self._apart(given.name):
            return f"const Apart<{given.c_type}, {self.width}> {given.name} = {{{start}}};"
        return f"{given.c_type}* const {given.name} = {start};"

    def _both(self, given: _Given) -> int:
        """Elements between a sample and the next one."""
        return -(-given.held.size // 16) * 16 // given.dtype.itemsize

    def _of_step(self) -> list[str]:
        """Memory that differs from step to step."""
        lines = []
        for given in self.given:
            if given.name[0] == "y" or (given.name[0] == "s" and given.name not in self.places.shared):
                lines.append(self._pointer(given, "step"))
            elif given.name[0] == "s":
                both = self._both(given)
                lines.append(f"{given.c_type}* const {given.name} = {given.name}_both + (step & 1) * {both};")
        return lines

    def _ahead(self) -> list[str]:
        """Begin to read the samples of the next step."""
        lines, late = [], []
        for number, given in enumerate(given for given in self.samples if given.name in self.places.shared):
            rounds = -(-given.count // self.threads)
            lines.append(f"{given.c_type} {given.name}_next[{rounds}];")
            late.append(self._each(given, number, "{next} = ({row})[(int64_t)e * {stride}];"))
        return [*lines, "if (step + 1 < steps) {", *late, "}"] if lines else []

    def _arrived(self) -> list[str]:
        """Put them where the next step looks for them."""
        lines = []
        for number, given in enumerate(given for given in self.samples if given.name in self.places.shared):
            other = f"{given.name}_both[((step + 1) & 1) * {self._both(given)} + e]"
            lines.append(self._each(given, number, other + " = {next};"))
        return lines

    def _each(self, given: _Given, number: int, statement: str) -> str:
        """A statement for each element of a sample; small samples are left to different warps."""
        rounds = -(-given.count // self.threads)
        lines = []
        for k in range(rounds):
            text = statement.replace("{next}", f"{given.name}_next[{k}]")
            text = text.replace("{row}", self._row(given, "(step + 1)")).replace("{stride}", str(self._step_of(given)))
            behind = 32 * number % self.threads
            e = f"(thread + {self.threads - behind}) % {self.threads} + {k * self.threads}"
            lines.append(f"{{ const int e = {e}; if (e < {given.count}) {text} }}")
        return " ".join(lines)

    def _returned(self) -> list[str]:
        """Carries go back to where they came from."""
        lines = []
        for given in self.changed:
            if given.name in self.places.shared:
                to = f"({self._row(given, '0')})[(int64_t)e * {self._step_of(given)}]"
                lines.append(
                    f"for (int e = thread; e < {given.count}; e += {self.threads}) {to} = {given.name}[e];"
                )
        return lines
