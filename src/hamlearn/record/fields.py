"""What can be measured of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from hamlearn._base.torch_private import foreach_norm

Row = dict[str, Any]
"""What is kept of one step: names to numbers, `None` for one that there is not, as a loss without target."""
Field = Callable[[Any, Any], Any]
"""(report, learner) to a number."""
NORMS = ("h", "z", "omega", "theta")
DEFAULT = ("step", "t", "loss", "hamiltonian", *NORMS, "seconds")
"""What is measured by default: time, loss, H, norms of h, z, ω and θ, and seconds on the clock."""


def fields_of(stream: Any) -> dict[str, Field]:
    """What can be measured beside the number of the step and the norms."""
    began = time.perf_counter()
    return {
        "t": lambda report, learner: report.t,
        "tau": lambda report, learner: getattr(report.sample, "tau", None),
        "loss": lambda report, learner: None if report.loss is None else float(report.loss),
        "hamiltonian": lambda report, learner: float(report.hamiltonian),
        "dropped": lambda report, learner: getattr(stream, "dropped", 0),
        "bad": lambda report, learner: getattr(stream, "bad", 0),
        "late": lambda report, learner: getattr(getattr(learner, "labels", None), "late", 0),
        "seconds": lambda report, learner: time.perf_counter() - began,
    }


def norms(learner: Any, names: Iterable[str]) -> Row:
    """Euclidean norms of h, z, ω or θ after a step; `None` for what there is not."""
    names = list(names)
    state = learner.state if set(names) != {"theta"} else None
    groups = [_weights(learner) if name == "theta" else _leaves(getattr(state, name)) for name in names]
    leaves = [leaf for group in groups for leaf in group]
    # In one call: many small ones cost as much as one each.
    sizes = iter(foreach_norm(leaves) if leaves else ())
    found = [math.hypot(*(float(next(sizes)) for _ in group)) if group else None for group in groups]
    return dict(zip(names, found, strict=True))


def _weights(learner: Any) -> list[Tensor]:
    """θ, of any learner."""
    module = learner.network if hasattr(learner, "network") else learner.module
    return [weight.detach() for weight in module.parameters()]


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree.detach()]
    parts = tree.values() if isinstance(tree, Mapping) else tree or ()
    return [leaf for part in parts for leaf in _leaves(part)]
