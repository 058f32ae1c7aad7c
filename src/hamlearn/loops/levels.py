"""Which nests may run at once: between two barriers stands a level of nests that do not depend on each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from hamlearn.loops.nests import Nest, Position
from hamlearn.loops.writer import Writer

LONG = 256
"""Terms of one element from which they are shared out over several warps."""
WARP = 32


@dataclass
class FusedNest:
    """A nest, and the nests over the same elements that continue, element by element, from its results."""

    nest: Nest
    tails: list[Nest] = field(default_factory=list)

    @property
    def touched(self) -> list[str]:
        """Names of the memory that is read or written."""
        return sorted({name for nest in (self.nest, *self.tails) for name in nest.touched})

    @property
    def written(self) -> set[str]:
        """Names of the memory that is written."""
        return {name for nest in (self.nest, *self.tails) for name in nest.writes}


def levels(nests: list[Nest]) -> list[list[FusedNest]]:
    """The nests in as few levels as their order allows.

    Nests may change places where neither writes what the other one touches. What works on the elements of a fold
    one by one belongs to the fold, and needs no level of its own.
    """
    found: list[list[FusedNest]] = []
    for nest in nests:
        needed = [(number, job) for number, level in enumerate(found) for job in level if _conflict(job, nest)]
        last = max((number for number, _ in needed), default=-1)
        ahead = [job for number, job in needed if number == last]
        if len(ahead) == 1 and _goes_on(ahead[0], nest):
            ahead[0].tails.append(nest)
            continue
        if last + 1 == len(found):
            found.append([])
        found[last + 1].append(FusedNest(nest))
    return found


def _conflict(job: FusedNest, later: Nest) -> bool:
    for earlier in (job.nest, *job.tails):
        shared = (set(earlier.writes) & set(later.touched)) | (set(earlier.touched) & set(later.writes))
        if earlier.disjoint and earlier.disjoint == later.disjoint:
            shared -= {earlier.disjoint}
        if shared:
            return True
    return False


def _goes_on(job: FusedNest, nest: Nest) -> bool:
    """Whether each element of `nest` needs, of all that the job writes, its own element alone."""
    first, folding = job.nest, job.nest.folding
    if not nest.open or nest.share is not None or first.share is not None:
        return False
    made: dict[str, Position] = {}
    if folding is None:
        if not first.open or nest.sizes != first.sizes:
            return False
        tails = [first, *job.tails]
    else:
        if folding.parts > 1 or nest.sizes != folding.sizes:
            return False
        folded = {name for name, _ in first.reads}
        if folded & set(nest.writes) or folding.memory in nest.writes:
            return False
        tails, made[folding.memory] = job.tails, folding.position
    for tail in tails:
        made |= tail.writes
        if any(name in nest.writes and nest.writes[name] != at for name, at in tail.reads):
            return False
    mine = [*nest.reads, *nest.writes.items()]
    return all(name not in made or made[name] == at for name, at in mine)


def split_folds(writer: Writer, nests: list[Nest], threads: int) -> list[Nest]:
    """Folds of many terms into few elements in two stages: a warp for each part of the terms, then the parts."""
    result = []
    for nest in nests:
        folding = nest.folding
        if folding is None or nest.share is not None:
            result.append(nest)
            continue
        count, terms = math.prod(folding.sizes), math.prod(folding.lengths)
        parts = min(threads // WARP // count, terms // (2 * WARP))
        if terms < LONG or parts < 2:
            result.append(nest)
            continue
        dtype = writer.types[folding.memory]
        name = writer.new_memory((count, parts), dtype, False)
        writer.types[name] = dtype
        first = Nest(nest.sizes, False, reads=nest.reads, writes={name: None}, open=False)
        first.folding = replace(folding, memory=name, parts=parts)
        second = Nest(folding.sizes, False, reads=[(name, None)], writes={folding.memory: None}, open=False)
        x = f"{name}[({folding.position})*{parts} + (r0)]"
        second.folding = replace(folding, lengths=(parts,), x=x)
        result += [first, second]
    return result
