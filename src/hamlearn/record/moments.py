"""One step as a row of numbers, each measured only when somebody asks for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_norm
from hamlearn.errors import ConfigError
from hamlearn.evaluate import Evaluation

Row = dict[str, Any]
"""What is kept of one moment: names to numbers (`None` where there is none, as a loss without target)."""

Field = Callable[[Any, Any], Any]
"""(report, learner) to a number."""


class Moment:
    """One step of a learner, as the policies and sinks see it.

    Args:
        step: Number of the step, from 1.
        report: What the step yielded: a `StepReport`.
        evaluation: The evaluation that it came with, if any.
        context: What does not change from step to step.
    """

    __slots__ = ("_cache", "_evaluation", "context", "report", "step")

    def __init__(self, step: int, report: Any, evaluation: Evaluation | None, context: Context) -> None:
        self.step, self.report, self.context = step, report, context
        self._evaluation = evaluation
        self._cache: Row = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._cache:
            self._cache[name] = self.context.fields[name](self)
        return self._cache[name]

    def row(self, names: tuple[str, ...]) -> Row:
        """The named fields and all scores."""
        row = {name: self[name] for name in names}
        if self._evaluation is not None:
            row |= self._evaluation.scores
            row |= {f"{name} (window)": value for name, value in self._evaluation.window.items()}
            for baseline, values in self._evaluation.baselines.items():
                row |= {f"{name} ({baseline})": value for name, value in values.items()}
        return row


class Context:
    """The learner, the stream and the fields that a recording measures."""

    def __init__(self, learner: Any, stream: Any, own: Mapping[str, Field] | None) -> None:
        self.learner, self.stream = learner, stream
        self.began = time.perf_counter()
        self.fields: dict[str, Callable[[Moment], Any]] = dict(_FIELDS)
        for name, field in (own or {}).items():
            self.fields[name] = _owned(field)
        self.normed: list[str] = []
        self._theta: list[Tensor] | None = None

    def check(self, names: tuple[str, ...]) -> None:
        """Take note of fields that will be asked for, and raise for one that nobody can measure."""
        for name in names:
            if name not in self.fields or name == "norms":
                known = ", ".join(sorted(set(self.fields) - {"norms"}))
                raise ConfigError(f"the field {name!r} is not known. Known are {known}.")
            if self.fields[name] is _FIELDS.get(name) and name in _NORMS and name not in self.normed:
                self.normed.append(name)

    def late(self) -> int:
        """Labels that came too late; 0 where the learner knows of none."""
        labels = getattr(self.learner, "labels", None)
        return 0 if labels is None else int(labels.late)

    def tensors(self, name: str, state: Any) -> list[Tensor]:
        """The tensors of h, z, ω or θ."""
        if name != "theta":
            return _leaves(getattr(state, name))
        if self._theta is None:
            net = self.learner.network if hasattr(self.learner, "network") else self.learner.module
            self._theta = _leaves(list(net.parameters()))
        return self._theta


def _norms(moment: Moment) -> dict[str, float | None]:
    """Euclidean norms of all that is asked for, in one go: a small call costs as much as a large one."""
    context = moment.context
    state = context.learner.state
    groups = {name: context.tensors(name, state) for name in context.normed}
    leaves = [leaf for group in groups.values() for leaf in group]
    if not leaves:
        return dict.fromkeys(groups)
    sizes = foreach_norm(leaves)
    if len({(size.dtype, size.device) for size in sizes}) == 1:
        numbers = iter(torch.stack(sizes).tolist())
    else:
        numbers = iter([float(size) for size in sizes])
    return {name: math.hypot(*(next(numbers) for _ in group)) if group else None for name, group in groups.items()}


def _leaves(tree: Any) -> list[Tensor]:
    if tree is None:
        return []
    if isinstance(tree, Tensor):
        return [tree.detach()] if tree.requires_grad else [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree
    return [leaf for part in parts for leaf in _leaves(part)]


def _owned(field: Field) -> Callable[[Moment], Any]:
    return lambda moment: field(moment.report, moment.context.learner)


def _loss(moment: Moment) -> float | None:
    loss = moment.report.loss
    return None if loss is None else float(loss)


def _norm(name: str) -> Callable[[Moment], float | None]:
    return lambda moment: moment["norms"][name]


_NORMS = ("h", "z", "omega", "theta")
_FIELDS: dict[str, Callable[[Moment], Any]] = {
    "norms": _norms,
    "step": lambda moment: moment.step,
    "t": lambda moment: moment.report.t,
    "tau": lambda moment: getattr(moment.report.sample, "tau", None),
    "loss": _loss,
    "hamiltonian": lambda moment: float(moment.report.hamiltonian),
    **{name: _norm(name) for name in _NORMS},
    "dropped": lambda moment: getattr(moment.context.stream, "dropped", 0),
    "bad": lambda moment: getattr(moment.context.stream, "bad", 0),
    "late": lambda moment: moment.context.late(),
    "seconds": lambda moment: time.perf_counter() - moment.context.began,
}

DEFAULT = ("step", "t", "loss", "hamiltonian", "h", "z", "omega", "theta", "seconds")
"""What is measured unless told otherwise: time, loss, H, norms of h, z, ω and θ, and seconds on the clock."""
