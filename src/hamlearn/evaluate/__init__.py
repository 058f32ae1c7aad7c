"""Test-then-train: predict, score, and only then learn."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from hamlearn.engine.setting import check_stream
from hamlearn.errors import ConfigError, SampleError
from hamlearn.evaluate.evaluation import Evaluation, in_unit, scored
from hamlearn.evaluate.scores import Prepare, Scores
from hamlearn.learner import Learner
from hamlearn.learner.learner import carry_along
from hamlearn.sample import Label, Sample

__all__ = ["Evaluation", "Scores", "evaluate", "scored"]


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
    For a target that comes later, they are those of the targets that had come when its sample was predicted.

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
    scores = Scores(given, window, prepare, getattr(learner, "loss", None), getattr(learner, "late", 0))
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
