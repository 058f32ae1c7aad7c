"""Cases of `hl.Learner`: a drawn learner, drawn operations, three judges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import hamlearn as hl
from tests.fuzz.cases import Op, Spec, draw_ops, draw_spec
from tests.fuzz.session import Diverged, Session

VARIANTS = 60


def draw(seed: int, variants: int = VARIANTS) -> tuple[Spec, list[Op]]:
    """The case of one integer."""
    r = Random(seed)
    spec = draw_spec(r, seed, variants)
    return spec, draw_ops(r, spec, r.randint(3, 10))


def play(spec: Spec, ops: list[Op]) -> Counter[str]:
    """Carry out a case; raises where something is wrong."""
    with TemporaryDirectory() as folder:
        try:
            session = Session(spec, Path(folder))
        except hl.errors.ConfigError as error:
            return Counter({f"not allowed: {error}"[:90]: 1})
        if "may be refused" in session.parts.traits and session.refused_by_name():
            return Counter({f"refused by name: {spec.network}": 1})
        try:
            for op in ops:
                session.do(op)
        except Diverged:
            session.counts["diverged, as the judge did"] += 1
        return session.counts
