"""Test-then-train as a generator: what it yields, and the loop itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from hamlearn.engine.setting import check_stream
from hamlearn.errors import ConfigError, SampleError
from hamlearn.evaluate.scores import Prepare, Scores
from hamlearn.learner import Learner
from hamlearn.learner.learner import carry_along
from hamlearn.sample import Label, Sample


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


def evaluate(
    learner: Any,
    stream: Iterable[Sample],
    *metrics: Any,
    window: int | None = None,
    prepare: Prepare | None = None,
    engine: Literal["eager", "compiled"] = "eager",
    resume: bool = False,
    chunk: int | None = None,
) -> Iterator[Evaluation]:
    """Score each prediction on a target that the learner has not seen, then let it learn; yield as it goes.

    The learner's loss and the shape of the target tell what a metric is given: numbers, classes or probabilities.
    Targets may be class numbers, one-hot rows, 0 and 1, or -1 and 1; the classes lie along axis 1, as in PyTorch.
    What they leave open raises an error that says what to pass as `prepare`.

    Baselines are scored on the same samples: the last value and the mean, or the last class and the majority.

    Args:
        learner: An `hl.Learner`, or anything with `predict(u)` and `step(sample)`. The output of an `hl.Learner`'s
            own step is scored, which was made before its target moves anything; a network with dropout is thus
            scored as it learns. Others are asked to predict first; if `predict` takes `tau`, it is passed.
        stream: Samples; those without target are learned but not scored. For targets that come later, use
            `hl.streams.delayed`, or labels of the stream's own.
        *metrics: Metrics of torchmetrics or of River: one or more, a list, a mapping from names, or a collection
            such as `metrics.MAE() + metrics.MSE()`. None: River's MAE or Accuracy, whichever fits the loss.
            River's are much faster for one sample at a time.
        window: Also score the last so many samples, counted from these samples and nothing else.
        prepare: Turns (y, target) into the (prediction, truth) that the metrics are given.
        engine: `"eager"`, or `"compiled"` for a `Learner`.
        resume: Continue where the checkpoint that the learner has loaded was saved, or from the start if it has
            loaded none: the stream continues from its position, the metrics from their counts.
        chunk: How many samples the compiled engine takes at a time, at most; `None`: as many as is usual.

    A `Label` in the stream is scored when it arrives, by the prediction that was made for its sample. A sample
    that the learner skips is not scored. While a `Learner` is evaluated, `learner.save` writes the place in the
    stream and the counts of the metrics too.

    Example:
        >>> import torch
        >>> from river import metrics
        >>> class Last:
        ...     y = torch.zeros(1)
        ...     def predict(self, u):
        ...         return self.y
        ...     def step(self, sample):
        ...         self.y = sample.target
        >>> stream = [Sample(torch.zeros(1), torch.tensor([x])) for x in (1.0, 2.0, 4.0)]
        >>> [e.scores["MAE"] for e in evaluate(Last(), stream, metrics.MAE(), window=2)][-1]
        1.3333333333333333
    """
    for name in ("predict", "step"):
        if not callable(getattr(learner, name, None)):
            raise ConfigError(
                f"a {type(learner).__name__} has no method {name}(), which test-then-train calls. "
                "Give a learner, or wrap yours in an object with predict(u) and step(sample)."
            )
    check_stream(stream)
    if engine not in ("eager", "compiled"):
        raise ConfigError(f'engine={engine!r} is not known. Give "eager" or "compiled".')
    given = metrics[0] if len(metrics) == 1 else metrics or None
    scores = Scores(given, window, prepare, getattr(learner, "loss", None))
    if not isinstance(learner, Learner):
        if resume or engine == "compiled":
            what = "resume=True" if resume else 'engine="compiled"'
            raise ConfigError(f"{what} needs an hl.Learner, got {type(learner).__name__}. Leave it out.")
        return _predicted_first(learner, stream, scores)
    if resume:
        scores.require_resumable()
    return _run(learner, learner.run(stream, None, engine, chunk, resume=resume), scores, resume)


def _run(learner: Learner, reports: Iterable[Any], scores: Scores, resume: bool) -> Iterator[Evaluation]:
    """Evaluate a run, which opens its stream at the first look, and saves the scores with its place."""
    carry_along(learner, {"scores": scores})
    yield from scored(reports, scores, learner.position if resume else 0)


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
        if target is not None and not report.skipped:
            scores.update(y, target)
        yield Evaluation(k, report.sample, y, target, report, scores)


def _predicted_first(learner: Any, stream: Iterable[Sample], scores: Scores) -> Iterator[Evaluation]:
    """Evaluate anything that predicts and steps."""
    try:
        takes_tau = "tau" in inspect.signature(learner.predict).parameters
    except (TypeError, ValueError):
        takes_tau = False
    for k, sample in enumerate(stream):
        if isinstance(sample, Label):
            raise SampleError(
                f"a {type(learner).__name__} does not take labels that come later: use an hl.Learner."
            )
        if not isinstance(sample, Sample):
            raise SampleError(
                f"the stream must yield hl.Sample, but yields {type(sample).__name__}: use hl.Sample(u, target), "
                "or make a stream of all the data, hl.streams.from_any(data)"
            )
        y = learner.predict(sample.u, tau=sample.tau) if takes_tau else learner.predict(sample.u)
        report = learner.step(sample)
        y, target = in_unit(y, sample)
        # An aligned local learner reports on another sample than it was shown.
        skipped = getattr(report, "skipped", False) and getattr(report, "sample", sample) is sample
        if target is not None and not skipped:
            scores.update(y, target)
        yield Evaluation(k, sample, y, target, report, scores)


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
