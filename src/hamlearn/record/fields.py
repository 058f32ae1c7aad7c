"""One step as a row of numbers, each measured only if it is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hamlearn._base.torch_private import foreach_norm
from hamlearn.evaluate import Evaluation

if TYPE_CHECKING:
    from hamlearn.record.recorder import Recorder

Row = dict[str, Any]
"""What is kept of one step: names to numbers, `None` for one that there is not, as a loss without target."""
Field = Callable[[Any, Any], Any]
"""(report, learner) to a number."""
NORMS = ("h", "z", "omega", "theta")
DEFAULT = ("step", "t", "loss", "hamiltonian", *NORMS, "seconds")
"""What is measured by default: time, loss, H, norms of h, z, ω and θ, and seconds on the clock."""


class Moment:
    """One step of a learner, as the sinks see it: `moment["loss"]` measures a field once.

    Args:
        step: Its number, from 1.
        taken: A report, or an evaluation.
        recorder: What the fields are, and of which learner.
    """

    __slots__ = ("_measured", "_recorder", "evaluation", "report", "step")

    def __init__(self, step: int, taken: Any, recorder: Recorder) -> None:
        self.step, self._recorder = step, recorder
        self.evaluation = taken if isinstance(taken, Evaluation) else None
        self.report = taken.report if isinstance(taken, Evaluation) else taken
        self._measured: Row = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._measured:
            if name in NORMS:
                # All that any sink asks for in one call: many small ones cost as much as one each.
                self._measured |= norms(self._recorder.learner, self._recorder.norms)
            else:
                self._measured[name] = self._recorder.fields[name](self)
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


def norms(learner: Any, names: Iterable[str]) -> Row:
    """Euclidean norms of h, z, ω or θ after a step; `None` for what there is not."""
    names = list(names)
    state = learner.state if set(names) != {"theta"} else None
    groups = [weights(learner) if name == "theta" else _leaves(getattr(state, name)) for name in names]
    leaves = [leaf for group in groups for leaf in group]
    sizes = iter(foreach_norm(leaves) if leaves else ())
    found = [math.hypot(*(float(next(sizes)) for _ in group)) if group else None for group in groups]
    return dict(zip(names, found, strict=True))


def weights(learner: Any) -> list[Tensor]:
    """θ, of any learner."""
    module = learner.network if hasattr(learner, "network") else learner.module
    return [weight.detach() for weight in module.parameters()]


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree.detach()]
    parts = tree.values() if isinstance(tree, Mapping) else tree or ()
    return [leaf for part in parts for leaf in _leaves(part)]


def fields_of(learner: Any, stream: Any) -> dict[str, Callable[[Moment], Any]]:
    """All fields that can be measured; those of `NORMS` are measured together."""
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
