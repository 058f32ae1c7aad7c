"""Makes a failing case smaller while it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from time import monotonic
from typing import Any


def signature(error: BaseException) -> str:
    """What kind of failure it is: the error without its numbers and names of weights."""
    text = re.sub(r"[-+]?\d[\d.e+-]*", "#", str(error).split("\n")[0])
    return f"{type(error).__name__}: {text}"[:100]


def failure_of(play: Callable[..., Any], *case: Any) -> BaseException | None:
    try:
        play(*case)
    except Exception as error:
        return error
    return None


def smaller(
    play: Callable[[Any, list[Any]], Any], spec: Any, ops: Sequence[Any], seconds: float
) -> tuple[Any, list[Any], BaseException]:
    """Leave out operations and put settings back to the plainest, as long as the case fails at all.

    A failure that turns into another one of the same type is followed: it is the smaller witness.
    """
    found = failure_of(play, spec, list(ops))
    if found is None:
        raise AssertionError("the case passes when it is played again")
    kind, end = type(found), monotonic() + seconds
    ops = list(ops)

    def fails(spec: Any, ops: list[Any]) -> bool:
        nonlocal found
        error = failure_of(play, spec, ops)
        if error is not None and type(error) is kind:
            found = error
            return True
        return False

    changed = True
    while changed and monotonic() < end:
        changed = False
        for place in reversed(range(len(ops))):
            fewer = ops[:place] + ops[place + 1 :]
            if monotonic() < end and fails(spec, fewer):
                ops, changed = fewer, True
        for field in fields(spec):
            if field.name in ("seed", "network") or field.default is MISSING:
                continue
            if getattr(spec, field.name) == field.default or monotonic() > end:
                continue
            plainer = replace(spec, **{field.name: field.default})
            if fails(plainer, ops):
                spec, changed = plainer, True
    return spec, ops, found
