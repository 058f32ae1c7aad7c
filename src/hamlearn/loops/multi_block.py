"""Networks too large for one block of threads: which rows of its matrices each of several blocks computes.

A matrix that is carried is cut into rows, and each block works on its own: the elements of a row, and what is
folded along it, need nothing of the other blocks. Vectors are small: every block computes all of them, each for
itself, and so ends with the same bits. What remains is exchanged through global memory: the elements of W·x, of
which each block has made some, and those of Wᵀ·x, to which each block has added its rows. All blocks wait for each
other in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hamlearn.loops.indices import counter, linear
from hamlearn.loops.nests import Nest, Share
from hamlearn.loops.writer import Writer

MATRIX = 4096
"""Elements from which a matrix is cut into rows."""
EXCHANGED = "x"
"""First letter of the names of what goes from block to block."""


def divisible(writer: Writer, nests: Sequence[Nest]) -> dict[str, int]:
    """The matrices that can be cut, with their numbers of rows."""
    found = {}
    for name, shape in writer.shapes.items():
        sizes = [length for length in shape if length > 1]
        if name[0] in "ckm" and len(sizes) > 1 and math.prod(sizes) >= MATRIX:
            found[name] = sizes[0]
    while True:
        refused = {name for nest in nests for name in _refused(writer, nest, found)}
        if not refused:
            return found
        found = {name: rows for name, rows in found.items() if name not in refused}


def divide(writer: Writer, nests: Sequence[Nest], matrices: dict[str, int], blocks: int) -> list[Nest]:
    """The nests as one of several blocks takes them, with what is exchanged between them."""
    result: list[Nest] = []
    waiting: dict[str, Nest] = {}
    sent: list[str] = []
    for nest in nests:
        if any(name in nest.touched for name in waiting):
            result += _arrivals(waiting, sent)
            waiting, sent = {}, []
        cut = [name for name in nest.touched if name in matrices]
        if not cut:
            result.append(nest)
            continue
        letter, rows = _letter(writer, nest, cut[0]), matrices[cut[0]]
        share = Share(letter, rows, blocks)
        if nest.folding is None:
            result.append(replace(nest, share=share))
            continue
        sender, arrival = _exchange(writer, nest, share, blocks)
        sent += sender.writes
        waiting[nest.folding.memory] = arrival
        result.append(sender)
    return [*result, *_arrivals(waiting, sent)]


def _arrivals(waiting: dict[str, Nest], sent: Sequence[str]) -> list[Nest]:
    """What makes vectors of all that has been sent so far, at once, so that the blocks meet once."""
    found: list[Nest] = []
    for arrival in waiting.values():
        arrival.reads = [(name, None) for name in sent]
        same = [nest for nest in found if nest.open and arrival.open and nest.sizes == arrival.sizes]
        if same:
            same[0].body += arrival.body
            same[0].writes |= arrival.writes
        else:
            found.append(arrival)
    return found


def _exchange(writer: Writer, nest: Nest, share: Share, blocks: int) -> tuple[Nest, Nest]:
    """A fold by the rows of each block, and what makes one vector of it."""
    folding = nest.folding
    assert folding is not None
    name = f"{EXCHANGED}{len(writer.shapes)}"
    count = math.prod(folding.sizes)
    writer.types[name] = writer.types[folding.memory]
    writer.shapes[name] = (count,) if share.letter == "i" else (blocks, count)
    floor = "" if share.letter == "i" else f"blockIdx.x * {count} + "
    sender = Nest(nest.sizes, False, reads=nest.reads, writes={name: None}, open=False, share=share)
    sender.folding = replace(folding, memory=name, floor=floor)
    if share.letter == "i":
        statement = f"{folding.memory}[{folding.position}] = {name}[{folding.position}];"
        return sender, Nest(folding.sizes, False, [statement], [(name, None)], {folding.memory: folding.position})
    arrival = Nest(folding.sizes, False, reads=[(name, None)], writes={folding.memory: None}, open=False)
    x = f"{name}[(r0)*{count} + ({folding.position})]"
    arrival.folding = replace(folding, lengths=(blocks,), x=x)
    return sender, arrival


def _refused(writer: Writer, nest: Nest, matrices: dict[str, int]) -> set[str]:
    """Those matrices that a nest does not touch row by row."""
    cut = {name for name in nest.touched if name in matrices}
    if not cut:
        return set()
    if nest.folding is not None and nest.folding.memory in cut:
        return {nest.folding.memory}
    letters = {(_letter(writer, nest, name), matrices[name]) for name in cut}
    ((letter, rows), *others) = letters
    extent = nest.sizes if nest.folding is None else nest.folding.sizes
    extent = extent if letter == "i" else () if nest.folding is None else nest.folding.lengths
    if others or not letter or nest.ordered or not extent or extent[0] != rows:
        return cut
    kept = nest.folding is not None or all(name in matrices or name[0] == "y" for name in nest.writes)
    return set() if kept else cut


def _letter(writer: Writer, nest: Nest, name: str) -> str:
    """Which index counts the rows of a matrix wherever a nest touches it: `i`, `r`, or none."""
    shape = [length for length in writer.shapes[name] if length > 1]
    rest = range(len(shape) - 1)
    own, folded = (
        {linear(shape, [counter(f"{row}0"), *(counter(f"{a}{n + (a == row)}") for n in rest)]) for a in "ir"}
        for row in "ir"
    )
    touched = {at for read, at in (nest.exact or nest.reads) if read == name}
    touched |= {at for written, at in nest.writes.items() if written == name}
    if touched <= own:
        return "i"
    return "r" if nest.folding is not None and touched <= folded else ""
