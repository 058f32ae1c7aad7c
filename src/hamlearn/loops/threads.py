"""The text of nests in CUDA: elements over the threads of a block, folds over neighbouring threads of a warp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamlearn.loops.levels import WARP, FusedNest
from hamlearn.loops.nests import Folding, Nest, Share

UNROLLED = 8
"""Iterations that a thread takes at once, so that their loads are under way together."""


def sizes_of(nest: Nest) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Trip counts of a block's loops over elements, and over what is folded into each."""
    elements, terms = (nest.sizes, ()) if nest.folding is None else (nest.folding.sizes, nest.folding.lengths)
    if nest.share is None:
        return elements, terms
    return nest.share.cut("i", elements), nest.share.cut("r", terms)


def used(nest: Nest, threads: int, wide: bool) -> int:
    """How many threads are busy in the last round of a nest: the next one begins behind them."""
    elements, _ = sizes_of(nest)
    if nest.folding is not None:
        count = math.prod(elements) * nest.folding.parts * width(nest, threads, wide)
    elif nest.ordered:
        count = math.prod(nest.sizes[depth] for depth in nest.apart)
    else:
        count = math.prod(elements)
    return -(-(count % threads) // WARP) * WARP


def width(nest: Nest, threads: int, wide: bool) -> int:
    """How many threads share the terms of one element: a power of two, within a warp.

    Args:
        nest: The nest that is folded.
        threads: Threads of a block.
        wide: Whether terms lie in global memory, which a whole warp should read in one piece.
    """
    elements, terms = sizes_of(nest)
    if nest.folding is not None and nest.folding.parts > 1:
        return WARP
    most = WARP if wide else max(1, threads // math.prod(elements))
    result = 1
    while result < WARP and 2 * result <= most and result < math.prod(terms):
        result *= 2
    return result


def function(name: str, job: FusedNest, parameters: Sequence[str], threads: int, wide: bool) -> str:
    """The job as a function of the thread's number in it and of its memory."""
    nest = job.nest
    if nest.folding is not None:
        body = _fold(nest, nest.folding, job.tails, threads, width(nest, threads, wide))
    elif nest.ordered:
        body = _in_order(nest, threads)
    else:
        body = _map(nest, job.tails, threads)
    given = ", ".join(["const int thread", *parameters])
    return f"INLINE void {name}({given}) {{\n{body}}}\n"


def _indices(letter: str, sizes: Sequence[int], number: str, share: Share | None = None) -> str:
    """Declare one index per loop, given an element's number among those of the block."""
    lines, behind = [], math.prod(sizes)
    for depth, size in enumerate(sizes):
        behind //= size
        place = number if behind == 1 else f"{number} / {behind}u"
        place = place if depth == 0 else f"({place}) % {size}u"
        if depth == 0 and share is not None and share.letter == letter:
            place = f"blockIdx.x * {share.per} + {place}"
        lines.append(f"const int {letter}{depth} = {place};")
    return " ".join(lines)


def _guard(letter: str, share: Share | None) -> str:
    """The last blocks may have fewer rows, or none."""
    if share is None or share.letter != letter or share.rows == share.per * share.blocks:
        return ""
    return f"if ({letter}0 < {share.rows}) "


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


def _map(nest: Nest, tails: Sequence[Nest], threads: int) -> str:
    elements, _ = sizes_of(nest)
    statements = [line for each in (nest, *tails) for line in each.body]
    block = "{\n" + "\n".join(statements) + "\n}\n"
    body = f"{_indices('i', elements, 'e', nest.share)}\n{_guard('i', nest.share)}{block}"
    unroll = max(1, min(UNROLLED, 64 // len(statements)))
    return _rounds(math.prod(elements), threads, "thread", unroll, body, "e")


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
    body = f"{named} {own}\n{heads}{{\n{statements}\n}}\n"
    return _rounds(math.prod(free), threads, "thread", 1, body, "e")


def _fold(nest: Nest, folding: Folding, tails: Sequence[Nest], threads: int, wide: int) -> str:
    elements, lengths = sizes_of(nest)
    count, at_once = math.prod(elements) * folding.parts, threads // wide
    several = folding.parts > 1
    named = _indices("i", elements, f"(e / {folding.parts}u)" if several else "e", nest.share)
    first = f"(part + {wide} * (e % {folding.parts}u))" if several else "part"
    term = folding.update.format(acc="acc", x=folding.x)
    term = f"{_indices('r', lengths, 'r', nest.share)} {_guard('r', nest.share)}{{ {term}; }}\n"
    gathered = _rounds(math.prod(lengths), wide * folding.parts, first, UNROLLED, term, "r")
    meet = ""
    if wide > 1:
        update = folding.update.format(acc="acc", x="x")
        meet = (
            f"#pragma unroll\nfor (int by = {wide // 2}; by > 0; by /= 2) "
            f"{{ const {folding.c_type} x = exchanged(acc, by); {update}; }}\n"
        )
    place = "e" if several else f"{folding.floor}{folding.position}"
    lines = [f"{folding.memory}[{place}] = acc;", *(line for tail in tails for line in tail.body)]
    statements, guard = "\n".join(lines), _guard("i", nest.share)
    return (
        f"const int part = thread % {wide}, slot = thread / {wide};\n"
        f"for (int k = 0; k < {-(-count // at_once)}; ++k) {{\n"
        # A warp takes part as a whole, or not at all.
        f"if ((thread - thread % WARP) / {wide} + k * {at_once} >= {count}) break;\n"
        f"const unsigned e = slot + k * {at_once};\n"
        f"{folding.c_type} acc = {folding.start};\n"
        f"if (e < {count}) {{\n{named}\n{guard}{{\n{gathered}}}\n}}\n{meet}"
        f"if (part == 0 && e < {count}) {{\n{named}\n{guard}{{\n{statements}\n}}\n}}\n}}\n"
    )
