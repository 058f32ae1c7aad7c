"""One step as a row of numbers, each measured only if it is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from hamlearn._base.torch_private import foreach_norm
from hamlearn.errors import ConfigError
from hamlearn.evaluate import Evaluation

Row = dict[str, Any]
"""What is kept of one step: names to numbers, `None` for one that there is not, as a loss without target."""
Field = Callable[[Any, Any], Any]
"""(report, learner) to a number."""
NORMS = ("h", "z", "omega", "theta")
DEFAULT = ("step", "t", "loss", "hamiltonian", *NORMS, "seconds")
"""What is measured by default: time, loss, H, norms of h, z, ω and θ, and seconds on the clock."""


class Context:
    """What does not change from step to step: the learner, and the fields that can be measured."""

    def __init__(self, learner: Any, stream: Any, own: Mapping[str, Field] | None) -> None:
        self.learner = learner
        self.fields: dict[str, Callable[[Moment], Any]] = _fields(learner, stream)
        for name, field in (own or {}).items():
            self.fields[name] = lambda moment, field=field: field(moment.report, learner)  # type: ignore[misc]
        # Only the norms that a sink asks for are measured, all at a time.
        self.norms: list[str] = []

    def check(self, names: Iterable[str]) -> None:
        """Take note of fields that will be asked for; raise `ConfigError` for one that is not known."""
        for name in names:
            if name not in self.fields:
                raise ConfigError(f"the field {name!r} is not known. Known are {', '.join(sorted(self.fields))}.")
            if name in NORMS and name not in self.norms:
                self.norms.append(name)


class Moment:
    """One step of a learner, as the policies and sinks see it: `moment["loss"]` measures a field once."""

    __slots__ = ("_measured", "context", "evaluation", "report", "step")

    def __init__(self, step: int, report: Any, evaluation: Evaluation | None, context: Context) -> None:
        self.step, self.report, self.evaluation, self.context = step, report, evaluation, context
        self._measured: Row = {}

    def __getitem__(self, name: str) -> Any:
        if name in NORMS and name not in self._measured:
            self._measured |= norms(self.context.learner, self.report, self.context.norms)
        if name not in self._measured:
            self._measured[name] = self.context.fields[name](self)
        return self._measured[name]

    def row(self, names: Iterable[str]) -> Row:
        """The named fields, all scores, and those of the baselines."""
        row = {name: self[name] for name in names}
        if self.evaluation is not None:
            row |= self.evaluation.scores
            row |= {f"{name} (window)": value for name, value in self.evaluation.window.items()}
            for baseline, values in self.evaluation.baselines.items():
                row |= {f"{name} ({baseline})": value for name, value in values.items()}
        return row


def norms(learner: Any, report: Any, names: Iterable[str]) -> dict[str, float | None]:
    """Euclidean norms of h, z, ω or θ after a step; `None` for what there is not."""
    found = dict(getattr(report, "norms", None) or {})
    missing = [name for name in names if name not in found]
    if not missing:
        return found
    state = learner.state if set(missing) != {"theta"} else None
    groups = {name: _leaves(_weights(learner) if name == "theta" else getattr(state, name)) for name in missing}
    leaves = [leaf for group in groups.values() for leaf in group]
    # In one call: many small ones cost as much as one each.
    sizes = iter(foreach_norm(leaves) if leaves else ())
    for name, group in groups.items():
        found[name] = math.hypot(*(float(next(sizes)) for _ in group)) if group else None
    return found


def _weights(learner: Any) -> list[Tensor]:
    return list((learner.network if hasattr(learner, "network") else learner.module).parameters())


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree.detach()]
    parts = tree.values() if isinstance(tree, Mapping) else tree or ()
    return [leaf for part in parts for leaf in _leaves(part)]


def _fields(learner: Any, stream: Any) -> dict[str, Callable[[Moment], Any]]:
    began = time.perf_counter()
    return {
        "step": lambda moment: moment.step,
        "t": lambda moment: moment.report.t,
        "tau": lambda moment: getattr(moment.report.sample, "tau", None),
        "loss": lambda moment: None if moment.report.loss is None else float(moment.report.loss),
        "hamiltonian": lambda moment: float(moment.report.hamiltonian),
        **dict.fromkeys(NORMS, lambda moment: None),
        "dropped": lambda moment: getattr(stream, "dropped", 0),
        "bad": lambda moment: getattr(stream, "bad", 0),
        "late": lambda moment: getattr(getattr(learner, "labels", None), "late", 0),
        "seconds": lambda moment: time.perf_counter() - began,
    }
