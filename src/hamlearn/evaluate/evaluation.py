"""What test-then-train yields, and how a run that is under way is scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hamlearn.evaluate.scores import Scores
from hamlearn.sample import Sample


class Evaluation:
    """One sample, predicted, scored and learned.

    Scores are computed when they are looked at: look at them before the next evaluation is taken, as in
    `[e.scores["MAE"] for e in evaluate(…)]`. Later they count the samples after this one too.

    Attributes:
        k: Number of the sample in the stream, from 0.
        sample: The sample; with a label that came later, that of the label.
        y: The prediction, made before the target came, in the unit of the data.
        target: The target in the unit of the data; `None` without one.
        report: What `learner.step` returned.

    Example:
        >>> import torch, hamlearn as hl
        >>> from river import metrics
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> stream = [Sample(torch.ones(1, 1), torch.ones(1, 1))] * 3
        >>> *_, last = hl.evaluate(learner, stream, metrics.MAE())
        >>> last.k, last.scores["MAE"] >= 0, last.baselines["last value"]
        (2, True, {'MAE': 0.0})
    """

    __slots__ = ("_scores", "k", "report", "sample", "target", "y")

    def __init__(self, k: int, sample: Sample, y: Any, target: Any, report: Any, scores: Scores) -> None:
        self.k, self.sample, self.y, self.target, self.report = k, sample, y, target, report
        self._scores = scores

    @property
    def scores(self) -> dict[str, float]:
        """Each metric over all predictions whose target has arrived so far; empty before the first."""
        return self._scores.overall.get("", {})

    @property
    def window(self) -> dict[str, float]:
        """The same over the last `window` samples."""
        return self._scores.recent.get("", {})

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """The metrics of the baselines on the same samples: over the window, or over everything without one."""
        return self._scores.baselines


def scored(reports: Iterable[Any], scores: Scores, first: int = 0) -> Iterator[Evaluation]:
    """Evaluations of a run that is under way, from the outputs that its own steps made.

    The output of a step is read before the step's target moves anything, so this is test-then-train without a
    second forward pass.

    Args:
        reports: What `Learner.run` yields.
        scores: The metrics.
        first: Number of the first sample.

    Example:
        >>> import torch, hamlearn as hl
        >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
        >>> scores = Scores(loss=learner.loss)
        >>> for evaluation in scored(learner.run([Sample(torch.ones(1), torch.ones(1))] * 3), scores):
        ...     pass
        >>> sorted(scores.summary())
        ['baselines', 'behind', 'scores', 'window']
    """
    for k, report in enumerate(reports, first):
        # A label whose sample is not known any more has no sample, and thus no target here.
        y, target = in_unit(report.y, report.sample)
        if report.sample is not None and not report.skipped:
            if target is not None:
                scores.update(y, target, report.sample.id if report.late else None)
            elif report.sample.id is not None:
                scores.predicted(report.sample.id)
        yield Evaluation(k, report.sample, y, target, report, scores)


def in_unit(y: Any, sample: Sample | None) -> tuple[Any, Any]:
    """A prediction for a sample, and its target, in the unit of the data, where a stream scales targets."""
    if sample is None:
        return y, None
    scale, target = sample.scale, sample.target
    if scale is None:
        return y, target
    if target is not None:
        target = scale.unscale(target) if scale.target is None else scale.target
    return scale.unscale(y), target
