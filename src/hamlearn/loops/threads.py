"""The text of nests in CUDA: elements over the threads of a block, folds over neighbouring threads of a warp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamlearn.loops.levels import WARP, Job
from hamlearn.loops.nests import Folding, Nest

UNROLLED = 8
"""Iterations that a thread takes at once, so that their loads are under way together."""


def used(job: Job, threads: int, wide: bool) -> int:
    """How many threads are busy in the last round of a job: the next one begins behind them."""
    nest = job.nest
    if nest.folding is not None:
        count = math.prod(nest.folding.sizes) * nest.folding.parts * width(nest.folding, threads, wide)
    elif nest.ordered:
        count = math.prod(nest.sizes[depth] for depth in nest.apart)
    else:
        count = math.prod(nest.sizes)
    return -(-(count % threads) // WARP) * WARP


def width(folding: Folding, threads: int, wide: bool) -> int:
    """How many threads share the terms of one element: a power of two, within a warp.

    Args:
        folding: What is folded.
        threads: Threads of a block.
        wide: Whether terms lie in global memory, which a whole warp should read in one piece.
    """
    if folding.parts > 1:
        return WARP
    terms, count = math.prod(folding.lengths), math.prod(folding.sizes)
    most = WARP if wide else max(1, threads // count)
    result = 1
    while result < WARP and 2 * result <= most and result < terms:
        result *= 2
    return result


def function(name: str, job: Job, parameters: Sequence[str], threads: int, wide: bool) -> str:
    """The job as a function of the thread's number in it and of its memory."""
    nest = job.nest
    if nest.folding is not None:
        body = _fold(nest.folding, job.tails, threads, width(nest.folding, threads, wide))
    elif nest.ordered:
        body = _in_order(nest, threads)
    else:
        body = _map(nest, threads)
    given = ", ".join(["const int thread", *parameters])
    return f"INLINE void {name}({given}) {{\n{body}}}\n"


def _indices(letter: str, sizes: Sequence[int], number: str) -> str:
    """Declare one index per loop, given an element's number."""
    lines, behind = [], math.prod(sizes)
    for depth, size in enumerate(sizes):
        behind //= size
        place = number if behind == 1 else f"{number} / {behind}u"
        lines.append(f"const int {letter}{depth} = {place if depth == 0 else f'({place}) % {size}u'};")
    return " ".join(lines)


def _rounds(count: int, stride: int, first: str, unroll: int, body: str, variable: str) -> str:
    """`body` for each number from `first` in steps of `stride`: whole rounds, and a last one for some threads."""
    whole, rest = divmod(count, stride)
    text = ""
    if whole:
        step = f"const unsigned {variable} = {first} + k * {stride};"
        many = f"#pragma unroll {min(whole, unroll)}\n" if whole > 1 else ""
        text += f"{many}for (int k = 0; k < {whole}; ++k) {{ {step}\n{body}}}\n"
    if rest:
        step = f"const unsigned {variable} = {first} + {whole * stride};"
        text += f"if ({first} < {rest}) {{ {step}\n{body}}}\n"
    return text


def _map(nest: Nest, threads: int) -> str:
    body = _indices("i", nest.sizes, "e") + "\n" + "\n".join(nest.body) + "\n"
    unroll = max(1, min(UNROLLED, 64 // len(nest.body)))
    return _rounds(math.prod(nest.sizes), threads, "thread", unroll, body, "e")


def _in_order(nest: Nest, threads: int) -> str:
    """One thread takes all iterations that may meet, in their order."""
    free = [nest.sizes[depth] for depth in nest.apart]
    heads = "".join(
        f"for (int i{depth} = 0; i{depth} < {size}; ++i{depth}) "
        for depth, size in enumerate(nest.sizes)
        if depth not in nest.apart
    )
    named = _indices("a", free, "e")
    own = " ".join(f"const int i{depth} = a{number};" for number, depth in enumerate(nest.apart))
    statements = "\n".join(nest.body)
    return _rounds(math.prod(free), threads, "thread", 1, f"{named} {own}\n{heads}{{\n{statements}\n}}\n", "e")


def _fold(folding: Folding, tails: Sequence[Nest], threads: int, wide: int) -> str:
    count, terms = math.prod(folding.sizes) * folding.parts, math.prod(folding.lengths)
    at_once = threads // wide
    stride = wide * folding.parts
    of = f"(e / {folding.parts}u)" if folding.parts > 1 else "e"
    element = _indices("i", folding.sizes, of)
    first = f"(part + {wide} * (e % {folding.parts}u))" if folding.parts > 1 else "part"
    term = _indices("r", folding.lengths, "r") + " " + folding.update.format(acc="acc", x=folding.x) + ";\n"
    gather = _rounds(terms, stride, first, UNROLLED, term, "r")
    meet = ""
    if wide > 1:
        update = folding.update.format(acc="acc", x="x")
        meet = (
            f"#pragma unroll\nfor (int by = {wide // 2}; by > 0; by /= 2) "
            f"{{ const {folding.c_type} x = exchanged(acc, by); {update}; }}\n"
        )
    target = f"{folding.memory}[e]" if folding.parts > 1 else f"{folding.memory}[{folding.position}]"
    statements = "\n".join([f"{target} = acc;", *(line for tail in tails for line in tail.body)])
    rounds = -(-count // at_once)
    return (
        f"const int part = thread % {wide}, slot = thread / {wide};\n"
        f"for (int k = 0; k < {rounds}; ++k) {{\n"
        # A warp takes part as a whole, or not at all.
        f"if ((thread - thread % WARP) / {wide} + k * {at_once} >= {count}) break;\n"
        f"const unsigned e = slot + k * {at_once};\n"
        f"{folding.c_type} acc = {folding.start};\n"
        f"if (e < {count}) {{\n{element}\n{gather}}}\n{meet}"
        f"if (part == 0 && e < {count}) {{\n{element}\n{statements}\n}}\n}}\n"
    )
