"""Loop nests: which statements share a loop, what a nest folds, and their text in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hamlearn.loops.indices import Affine

Position = Affine | None
"""Where in memory an element is; `None` stands for any position."""
Reads = list[tuple[str, Position]]
"""Memory that is read, with the element's position."""


@dataclass(frozen=True)
class Folding:
    """What a nest folds: for each element, an expression over all that is folded into it.

    Attributes:
        sizes: Trip counts over the elements, in `i0`, `i1`, ..., the outermost first.
        lengths: Trip counts of what is folded, in `r0`, `r1`, ...
        c_type: Type of the elements.
        start: Value of no terms.
        update: Statement in `{acc}` and `{x}`.
        x: A term.
        memory: Where the elements go.
        position: Where an element goes in it.
        parts: Into how many parts the terms of an element are split; each is an element of its own, the parts of
            one behind each other.
        floor: An offset of the place of an element, if each of several blocks writes elements of its own.
    """

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    c_type: str
    start: str
    update: str
    x: str
    memory: str
    position: Affine
    parts: int = 1
    floor: str = ""


@dataclass(frozen=True)
class Share:
    """Which rows of a nest each of several blocks of threads takes.

    Attributes:
        letter: `i` where the rows are those of the elements, `r` where they are those of what is folded.
        rows: Number of rows, of which index 0 of that letter counts the number.
        blocks: Number of blocks.
    """

    letter: str
    rows: int
    blocks: int

    @property
    def per(self) -> int:
        """Rows of one block; the last ones may have fewer, or none."""
        return -(-self.rows // self.blocks)

    def cut(self, letter: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Trip counts of the loops of a letter, for one block."""
        return (self.per, *sizes[1:]) if letter == self.letter else sizes


@dataclass
class Nest:
    """A loop nest with a body of statements, and what it touches.

    Attributes:
        sizes: Trip counts, the outermost first.
        lanes: Whether an innermost loop runs over the members of a population.
        body: Statements.
        reads: Memory that is read.
        writes: Memory that is written, and the position.
        open: Whether further statements may join.
        ordered: Whether an iteration may depend on those before it.
        function: Name of the function that it is moved to, where its sums may be taken in another order.
        folding: What it folds, for who writes the nest in another way than as this body.
        apart: Depths of those loops of an ordered nest whose iterations never meet in the same place.
        disjoint: Memory of which each nest that says so writes places of its own.
        exact: What a closed nest reads, with positions.
        share: Which rows a block takes where several blocks work together; `None`: each takes all.
    """

    sizes: tuple[int, ...]
    lanes: bool
    body: list[str] = field(default_factory=list)
    reads: Reads = field(default_factory=list)
    writes: dict[str, Position] = field(default_factory=dict)
    open: bool = True
    ordered: bool = False
    function: str = ""
    folding: Folding | None = None
    apart: tuple[int, ...] = ()
    disjoint: str = ""
    exact: Reads = field(default_factory=list)
    share: Share | None = None

    @property
    def touched(self) -> list[str]:
        """Names of the memory that is read or written."""
        return sorted({read for read, _ in self.reads} | set(self.writes))

    def depends(self, reads: Sequence[tuple[str, Affine]], name: str) -> bool:
        """Whether a statement that writes `name` must stay behind this nest."""
        return name in self.touched or any(read in self.writes for read, _ in reads)

    def admits(self, reads: Sequence[tuple[str, Affine]], name: str, position: Affine) -> bool:
        """Whether, within each iteration, a statement finds what it would find behind the whole nest."""
        for read, at in reads:
            if self.writes.get(read, at) != at or (read == name and at != position):
                return False
        return all(read != name or at == position for read, at in self.reads)

    def text(self, lanes: int) -> str:
        """The nest in C."""
        heads = [f"for (int64_t i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(self.sizes)]
        if self.lanes:
            heads.append(f"for (int64_t l = 0; l < {lanes}; ++l)")
        if heads and not self.ordered:
            # A loop over few members would be unrolled before it could become one vector operation.
            heads[-1] = f"\n#pragma {'omp simd' if self.lanes else 'GCC ivdep'}\n{heads[-1]}"
        return f"{' '.join(heads)} {{\n" + "\n".join(self.body) + "\n}"


def join(
    nests: list[Nest],
    sizes: tuple[int, ...],
    lanes: bool,
    statement: str,
    reads: Sequence[tuple[str, Affine]],
    write: tuple[str, Affine],
) -> None:
    """Put a statement into the earliest nest of its sizes where that changes nothing, or into a new one.

    Args:
        nests: All nests so far.
        sizes: Trip counts of the statement's loops.
        lanes: Whether it runs for each member.
        statement: One assignment.
        reads: What it reads.
        write: The memory it writes, and the position.
    """
    name, position = write
    place = None
    for nest in reversed(nests):
        if nest.open and (nest.sizes, nest.lanes) == (sizes, lanes) and nest.admits(reads, name, position):
            place = nest
        if nest.depends(reads, name):
            break
    if place is None:
        place = Nest(sizes, lanes)
        nests.append(place)
    place.body.append(statement)
    place.reads += reads
    place.writes[name] = position
