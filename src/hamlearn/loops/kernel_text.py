"""The text of a kernel: memory at the start, steps with their barriers, carries at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hamlearn.loops.levels import WARP, FusedNest
from hamlearn.loops.memory_planner import Placement, aligned
from hamlearn.loops.prelude import CUDA_PRELUDE
from hamlearn.loops.threads import function, used
from hamlearn.loops.values import C_TYPES

FAR = 4096
"""Bytes from which it matters how a piece in global memory is read."""
MEETING = 128
"""Bytes at the start of global memory for the number of blocks that have arrived at a barrier."""


@dataclass(frozen=True)
class Given:
    """A tensor that is handed to a kernel.

    Attributes:
        name: `c`, `s`, `k` or `y` and a number: carry, sample, constant or result.
        dtype: Its type.
        count: Elements, of one member and one step.
        laned: Whether the members of a group lie along a last axis.
    """

    name: str
    dtype: torch.dtype
    count: int
    laned: bool

    @property
    def c_type(self) -> str:
        """Its type in C."""
        return C_TYPES[self.dtype]

    @property
    def ahead(self) -> int:
        """Elements between a sample and the next one in shared memory."""
        return aligned(self.count * self.dtype.itemsize) // self.dtype.itemsize


class Text:
    """Writes a kernel.

    Args:
        levels: Nests, with barriers between the levels.
        given: Tensors in the order of their pointers.
        places: Where memory is.
        cuts: Elements of one block, for what is cut into rows.
        exchange: Bytes of each vector that goes from block to block.
        types: Types by name.
        threads: Threads of a block.
        width: Members in a group.
        blocks: Blocks that work together.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[FusedNest]],
        given: Sequence[Given],
        places: Placement,
        cuts: dict[str, int],
        exchange: dict[str, int],
        types: dict[str, torch.dtype],
        threads: int,
        width: int,
        blocks: int,
    ) -> None:
        self.levels, self.given, self.places, self.cuts = levels, given, places, cuts
        self.exchange, self.threads, self.width, self.blocks = exchange, threads, width, blocks
        self.by_name = {g.name: g for g in given}
        self.number = {g.name: number for number, g in enumerate(given)}
        self.types = {g.name: g.dtype for g in given} | types
        self.staged = [g for g in given if g.name[0] == "s" and g.count and g.name in places.shared]

    def source(self, written: set[str]) -> str:
        """The kernel, given the names of what is written."""
        functions, calls = self._steps()
        wait = ["meet(arrived, met);"] if self.blocks > 1 else ["__syncthreads();"]
        return "\n".join(
            [
                f"{CUDA_PRELUDE}struct Given {{ void* at[{max(len(self.given), 1)}]; }};",
                *functions,
                f'extern "C" __global__ void __launch_bounds__({self.threads}) run(',
                "const Given given, const int64_t steps, const int64_t groups, unsigned char* const scratch) {",
                "const int thread = threadIdx.x;",
                f"const int group = blockIdx.x / {self.width}, l = blockIdx.x % {self.width};",
                *(
                    ["unsigned* const arrived = (unsigned*)scratch;", "unsigned met = 0;"]
                    if self.blocks > 1
                    else []
                ),
                *self._kept(),
                *wait,
                "for (int64_t step = 0; step < steps; ++step) {",
                *self._of_step(),
                *self._ahead(),
                *calls,
                *self._arrived(),
                "__syncthreads();",
                "}",
                *(self._returned(g) for g in self.given if g.name[0] == "c" and g.name in written),
                "}\n",
            ]
        )

    def _steps(self) -> tuple[list[str], list[str]]:
        """A function for each job, and their calls, with barriers between the levels."""
        functions: list[str] = []
        calls: list[str] = []
        sent: set[str] = set()
        for level in self.levels:
            if calls:
                meets = any(sent & set(job.touched) for job in level)
                calls.append("meet(arrived, met);" if meets else "__syncthreads();")
                sent = set() if meets else sent
            behind = 0
            for job in level:
                wide = any(self._far(name) for name in job.nest.touched)
                parameters = [f"{self._type(name)} {name}" for name in job.touched]
                name = f"n{len(functions)}"
                functions.append(function(name, job, parameters, self.threads, wide))
                thread = f"(thread + {self.threads - behind}) % {self.threads}" if behind else "thread"
                calls.append(f"{name}({', '.join([thread, *job.touched])});")
                behind = (behind + used(job.nest, self.threads, wide)) % self.threads
                sent |= job.written & set(self.exchange)
        return functions, calls

    def _far(self, name: str) -> bool:
        if name in self.places.shared or name in self.exchange:
            return False
        given = self.by_name.get(name)
        return given is None or given.count * given.dtype.itemsize >= FAR

    def _apart(self, name: str) -> bool:
        """Whether the elements are found in global memory, apart from each other."""
        given = self.by_name.get(name)
        return given is not None and given.laned and name not in self.places.shared

    def _type(self, name: str) -> str:
        c_type = C_TYPES[self.types[name]]
        if name in self.exchange:
            # What other blocks have written must not come from a cache of this one.
            return f"volatile {c_type}*"
        return f"const Apart<{c_type}, {self.width}>" if self._apart(name) else f"{c_type}* __restrict__"

    def _row(self, given: Given, step: str) -> str:
        """Where a tensor's elements for a step begin, for this block's member."""
        row, pointer = step if given.name[0] in "sy" else "0", f"given.at[{self.number[given.name]}]"
        if given.laned:
            return f"({given.c_type}*){pointer} + ({row} * groups + group) * {given.count * self.width} + l"
        return f"({given.c_type}*){pointer} + {row} * {given.count}"

    def _element(self, given: Given, step: str, e: str = "e") -> str:
        return f"({self._row(given, step)})[(int64_t)({e}) * {self.width if given.laned else 1}]"

    def _first(self, name: str) -> str:
        """The first element of this block, of what is cut into rows."""
        return f"blockIdx.x * {self.cuts[name]}" if name in self.cuts else ""

    def _each(self, given: Given, statement: str) -> str:
        """A statement for each element `e` that this block has."""
        first, count = self._first(given.name) or "0", self.cuts.get(given.name, given.count)
        whole = f" && e < {given.count}" if given.name in self.cuts else ""
        loop = f"for (int e = {first} + thread; e < {first} + {count}{whole}; e += {self.threads})"
        return f"{loop} {statement}"

    def _kept(self) -> list[str]:
        """Memory that is there for all steps, with what it begins with."""
        lines = []
        block = f"scratch + {MEETING + 2 * sum(self.exchange.values()) if self.blocks > 1 else 0}"
        block = f"{block} + (int64_t)blockIdx.x * {self.places.scratch_size}"
        for base, offsets in (("shared", self.places.shared), (block, self.places.scratch)):
            for name, offset in offsets.items():
                c_type, given = C_TYPES[self.types[name]], self.by_name.get(name)
                less = f" - (int64_t){self._first(name)}" if name in self.cuts else ""
                sample = given is not None and name[0] == "s"
                called = f"{name}_both" if sample else name
                lines.append(f"{c_type}* const {called} = ({c_type}*)({base} + {offset}){less};")
                if given is not None:
                    lines.append(self._each(given, f"{called}[e] = {self._element(given, '0')};"))
        lines += [
            self._pointer(given, "0")
            for given in self.given
            if given.name[0] in "ck" and given.name not in self.places.shared
        ]
        return lines

    def _pointer(self, given: Given, step: str) -> str:
        start = self._row(given, step)
        if self._apart(given.name):
            return f"const Apart<{given.c_type}, {self.width}> {given.name} = {{{start}}};"
        return f"{given.c_type}* const {given.name} = {start};"

    def _of_step(self) -> list[str]:
        """Memory that differs from step to step."""
        lines, offset = [], MEETING
        for given in self.given:
            if given.name[0] == "s" and given.name in self.places.shared:
                turn = f"{given.name}_both + (step & 1) * {given.ahead}"
                lines.append(f"{given.c_type}* const {given.name} = {turn};")
            elif given.name[0] in "sy":
                lines.append(self._pointer(given, "step"))
        for name, size in self.exchange.items():
            c_type, turn = C_TYPES[self.types[name]], f"{offset} + (step & 1) * {size}"
            lines.append(f"volatile {c_type}* const {name} = (volatile {c_type}*)(scratch + {turn});")
            offset += 2 * size
        return lines

    def _ahead(self) -> list[str]:
        """Begin to read the samples of the next step."""
        lines = [f"{g.c_type} {g.name}_next[{-(-g.count // self.threads)}];" for g in self.staged]
        if lines:
            reads = [self._sample(g, f"{{next}} = {self._element(g, '(step + 1)')};") for g in self.staged]
            lines += ["if (step + 1 < steps) {", *reads, "}"]
        return lines

    def _arrived(self) -> list[str]:
        """Put them where the next step looks for them."""
        return [
            self._sample(g, f"{g.name}_both[((step + 1) & 1) * {g.ahead} + e] = {{next}};") for g in self.staged
        ]

    def _sample(self, given: Given, statement: str) -> str:
        """A statement for each element of a sample; small samples are left to different warps."""
        behind = WARP * self.staged.index(given) % self.threads
        lines = []
        for k in range(-(-given.count // self.threads)):
            e = f"(thread + {self.threads - behind}) % {self.threads} + {k * self.threads}"
            text = statement.format(next=f"{given.name}_next[{k}]")
            lines.append(f"{{ const int e = {e}; if (e < {given.count}) {text} }}")
        return " ".join(lines)

    def _returned(self, given: Given) -> str:
        """A carry goes back to where it came from; where all blocks have the same, the first one brings it."""
        if given.name not in self.places.shared:
            return ""
        only = "if (blockIdx.x == 0) " if self.blocks > 1 and given.name not in self.cuts else ""
        return only + self._each(given, f"{self._element(given, '0')} = {given.name}[e];")
