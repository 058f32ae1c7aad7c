"""Test-then-train: predict, score, and only then learn."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from hamlearn._base.numbers import as_number
from hamlearn.engines.setting import check_stream
from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.evaluate.carried import Carried
from hamlearn.evaluate.logits import on_logits
from hamlearn.evaluate.scores import Prepare, Scores
from hamlearn.learner import Learner
from hamlearn.learner.learner import keep_answer
from hamlearn.sample import Label, Sample

_ROUNDING = 1e-12
"""What rounding may make of a sum of time steps, relatively."""

__all__ = ["Evaluation", "Learns", "evaluate"]

Delay = float | Callable[[int, Sample], float | None]
"""How long after its input a target comes: a number, or a function of index and sample (`None`: never)."""


class Learns(Protocol):
    """What can be evaluated: anything that predicts, and takes a step on a sample.

    Example:
        >>> import hamlearn as hl
        >>> hasattr(hl.Learner, "predict") and hasattr(hl.local.LocalLearner, "step")
        True
    """

    def predict(self, u: Any) -> Any:
        """The output for `u`; nothing moves."""

    def step(self, sample: Sample) -> Any:
        """Learn from one sample."""


@dataclass(slots=True)
class Evaluation:
    """What `evaluate` yields for each sample, once it was learned.

    Attributes:
        k: Number of the sample in the stream, from 0.
        moment: When its target came: the number of the sample, or the time, that was then reached.
        sample: The sample, with its target if that ever came.
        y: The prediction, made before the target came.
        report: What `learner.step` returned.
        scores: Each metric over all predictions whose target has arrived so far; empty before the first.
        window: The same over the last `window` of them.

    Example:
        >>> import torch, hamlearn as hl
        >>> from river import metrics
        >>> net = hl.Network.feedforward(torch.nn.Linear(1, 1))
        >>> learner = hl.Learner(net, torch.nn.functional.mse_loss)
        >>> stream = [Sample(torch.ones(1, 1), torch.ones(1, 1))] * 3
        >>> *_, last = hl.evaluate(learner, stream, metrics.MAE())
        >>> last.k, last.scores["MAE"] >= 0, last.report.loss.shape
        (2, True, torch.Size([]))
    """

    k: int
    moment: float
    sample: Sample
    y: Any
    report: Any
    scores: dict[str, float]
    window: dict[str, float]


def evaluate(
    learner: Learns,
    stream: Iterable[Sample],
    metrics: Any,
    window: int | None = None,
    delay: Delay = 0,
    unit: Literal["steps", "time"] = "steps",
    prepare: Prepare | None = None,
    engine: Literal["eager", "compiled"] = "eager",
    resume: bool = False,
    chunk: int | None = None,
) -> Iterator[Evaluation]:
    """Score each prediction on a target that the learner has not seen, then let it learn; yield as it goes.

    Args:
        learner: Anything with `predict(u)` and `step(sample)`. Where `predict` takes `tau` it is given.
        stream: Samples; those without target are learned but not scored.
        metrics: A metric of torchmetrics or of River, a list of them, or a mapping from names to them.
            River's are made for one sample at a time and much the faster here.
        window: Also score the last so many predictions.
        delay: How long after its input a target arrives: a number, or a function of the sample's number and
            the sample that returns one, or `None` where it never arrives.
        unit: What `delay` counts: `"steps"`, or `"time"`, the sum of the samples' `tau`.
        prepare: Turns (y, target) into the (prediction, truth) that the metrics see. By default torchmetrics
            see tensors as they are, but probabilities in place of logits where the learner's loss is
            `cross_entropy`, `nll_loss` or `binary_cross_entropy_with_logits`, or a module of these; River's see
            numbers for regression, and for classification the class of the largest output (or the sign of a
            single one), or probabilities where they ask for them.
        engine: `"eager"`, or `"compiled"` for a `Learner` whose targets are never late. Compiled, the prediction
            that is scored is the output of the step itself, made before its target moves anything; a network with
            dropout is then scored as it learns, and not in evaluation mode.
        resume: Continue where the checkpoint that the learner has loaded was saved, or from the start if it has
            loaded none: the stream continues from its position, and the metrics from their state. A metric that
            could not continue exactly is refused before anything runs. For a `Learner` whose targets are never
            late.
        chunk: How many samples the compiled engine takes at a time, at most; `None`: as many as is usual.

    A `Label` in the stream is scored when it arrives, by the prediction that was made for its sample. A sample
    that the learner skips is not scored.

    While a `Learner` is evaluated without delay, `learner.save` writes the place in the stream and the metrics
    too.

    The prediction for a sample is made when its input arrives, by a learner that has learned whatever was due
    by then and nothing else. With a delay, a sample waits to be scored and learned until its target arrives:
    the learner's state is then that far behind the stream. What still waits at the end is learned last.

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
    if unit not in ("steps", "time"):
        raise ConfigError(f'unit={unit!r} is not known. Give "steps" or "time".')
    if not callable(delay) and not as_number(delay) >= 0:
        raise ConfigError(f"delay={delay!r} would have a target come before its input. Give 0 or more.")
    for name in ("predict", "step"):
        if not callable(getattr(learner, name, None)):
            raise ConfigError(
                f"a {type(learner).__name__} has no method {name}(), which test-then-train calls. "
                "Give a learner, or wrap yours in an object with predict(u) and step(sample)."
            )
    check_stream(stream)
    scores = Scores(metrics, window, prepare, on_logits(getattr(learner, "loss", None)))
    if engine not in ("eager", "compiled"):
        raise ConfigError(f'engine={engine!r} is not known. Give "eager" or "compiled".')
    runs = isinstance(learner, Learner) and not callable(delay) and delay == 0
    if not runs and (resume or engine == "compiled"):
        _refuse(learner, delay, "resume=True" if resume else 'engine="compiled"')
    if resume:
        scores.require_resumable()
    if not isinstance(learner, Learner) or not runs:
        return _evaluate(learner, stream, scores, delay, unit)
    if engine == "eager":
        return _step_by_step(learner, stream, scores, unit, resume)
    if unit != "steps":
        raise ConfigError('engine="compiled" counts moments in steps. Leave unit out: there is no delay to count.')
    first = learner.position if resume else 0
    carried = Carried(stream, {"scores": scores}, first)
    return scored(learner.run(carried, None, engine, chunk, resume=resume), scores, first)


def _refuse(learner: Any, delay: Delay, what: str) -> None:
    if not isinstance(learner, Learner):
        raise ConfigError(
            f"{what} needs an hl.Learner, and this is a {type(learner).__name__}. Leave it out, or evaluate a "
            "Learner."
        )
    late = "delay is a function" if callable(delay) else f"delay={delay}"
    raise ConfigError(
        f"{what} needs targets that come with their inputs, but {late}: what waits is neither part of "
        f"a checkpoint nor of a compiled block. Leave delay out, or {what.partition('=')[0]}."
    )


def scored(reports: Iterable[Any], scores: Scores, first: int = 0) -> Iterator[Evaluation]:
    """Evaluations of a run that is under way, from the outputs that its own steps made.

    The output of a step is read before the step's target moves anything, so that this is test-then-train without
    delay, at no cost of a second forward pass.

    Args:
        reports: What `Learner.run` yields.
        scores: The metrics.
        first: Number of the first sample.
    """
    read: tuple[dict[str, float], dict[str, float]] | None = None
    for k, report in enumerate(reports, first):
        counts = _counts(report)
        if counts:
            scores.update(report.y, report.sample.target)
        if counts or read is None:
            read = scores.read()
        yield Evaluation(k, float(k), report.sample, report.y, report, *read)


def _step_by_step(
    learner: Learner, stream: Iterable[Sample], scores: Scores, unit: str, resume: bool
) -> Iterator[Evaluation]:
    """Evaluate without delay, by a run of the learner's own, which knows its place in the stream."""
    predict = _predictor(learner)
    first = learner.position if resume else 0
    y, read = None, scores.read()

    def meet(sample: Sample | Label) -> None:
        nonlocal y, read
        k = carried.taken - 1
        if unit == "steps":
            carried.moment = float(k)
        elif k == 0:
            carried.moment = 0.0
        elif carried.moment is None:
            raise CheckpointError(
                'unit="time" goes on with the time that had passed, which the checkpoint does not tell: it was '
                'saved by the compiled engine. Resume with unit="steps".'
            )
        elif not isinstance(sample, Label):
            carried.moment += _tau(learner, sample, k)
        if k == first and resume:
            read = scores.read()
        if not isinstance(sample, Label):
            y = predict(sample)

    carried = Carried(stream, {"scores": scores}, first, meet)
    for report in learner.run(carried, resume=resume):
        moment = carried.moment or 0.0
        if isinstance(carried.last, Label):
            # It belongs to an answer that was given earlier, which its step tells.
            y = report.y
        elif report.sample.id is not None and report.sample.target is None:
            keep_answer(learner, report.sample.id, y)
        if _counts(report):
            scores.update(y, report.sample.target)
            read = scores.read()
        yield Evaluation(carried.taken - 1, moment, report.sample, y, report, *read)


def _evaluate(
    learner: Learns, stream: Iterable[Sample], scores: Scores, delay: Delay, unit: str
) -> Iterator[Evaluation]:
    predict = _predictor(learner)
    waiting: list[tuple[float, int, Sample, Any]] = []
    read: tuple[dict[str, float], dict[str, float]] = ({}, {})
    moment = 0.0

    def learn(k: int, sample: Sample, y: Any, now: float) -> Evaluation:
        nonlocal read
        report = learner.step(sample)
        # An aligned local learner may tell of another sample than it was shown.
        skipped = getattr(report, "skipped", False) and getattr(report, "sample", sample) is sample
        if sample.target is not None and not skipped:
            scores.update(y, sample.target)
            read = scores.read()
        return Evaluation(k, now, sample, y, report, *read)

    for k, sample in enumerate(stream):
        if isinstance(sample, Label):
            raise SampleError(
                f"event {k} is a label of its own, which only an hl.Learner without delay takes. Leave delay out."
            )
        if k:
            moment += 1.0 if unit == "steps" else _tau(learner, sample, k)
        # Time is a sum of steps, of which rounding may leave a trace.
        while waiting and waiting[0][0] <= moment * (1 + _ROUNDING):
            _, earlier, old, y = heapq.heappop(waiting)
            yield learn(earlier, old, y, moment)
        y = predict(sample)
        late = delay(k, sample) if callable(delay) else delay
        if late is not None and not as_number(late) >= 0:
            raise ConfigError(
                f"delay is {late!r} for sample {k}. Return 0 or more, or None where no target comes."
            )
        if late is None:
            sample, late = replace(sample, target=None), 0.0
        if late > 0:
            heapq.heappush(waiting, (moment + late, k, sample, y))
        else:
            yield learn(k, sample, y, moment)
    while waiting:
        due, earlier, old, y = heapq.heappop(waiting)
        yield learn(earlier, old, y, due)


def _counts(report: Any) -> bool:
    """Whether a step had a target to be scored by. A label whose sample is not known any more has no sample."""
    return report.sample is not None and report.sample.target is not None and not report.skipped


def _predictor(learner: Any) -> Callable[[Sample], Any]:
    try:
        takes_tau = "tau" in inspect.signature(learner.predict).parameters
    except (TypeError, ValueError):
        takes_tau = False

    def predict(sample: Sample) -> Any:
        if not isinstance(sample, Sample):
            raise SampleError(
                f"the stream holds a {type(sample).__name__}, and no hl.Sample: use hl.Sample(u, target), or make "
                "a stream of all the data, hl.streams.from_any(data)"
            )
        return learner.predict(sample.u, tau=sample.tau) if takes_tau else learner.predict(sample.u)

    return predict


def _tau(learner: Any, sample: Sample, k: int) -> float:
    tau = sample.tau
    if tau is None:
        tau = getattr(getattr(learner, "hyper", None), "tau", None)
    if not isinstance(tau, int | float):
        raise SampleError(
            f'sample {k} does not say how much time has passed, which a delay in "time" needs. '
            'Use a stream with times, or unit="steps".'
        )
    return float(tau)
