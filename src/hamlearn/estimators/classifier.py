"""Classes, one row at a time or many."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from hamlearn.errors import SampleError
from hamlearn.estimators.base import Estimator, Row, Rows, as_rows, plain
from hamlearn.estimators.encoder import is_missing
from hamlearn.estimators.pipeline import Pipeline
from hamlearn.estimators.tasks import CLOSED, ClassTask

FIRST_PLACES = 4
"""Places for classes at first; twice as many whenever they are used up."""


class Classifier(Estimator):
    """Learns classes from a stream with nothing to set: a mixture of networks over columns of any kind.

    Numbers are standardised and encoded between running quantiles, texts are categories, and `None`, NaN, and NA
    and NaT of pandas are missing. A column is of numbers or of texts from its first value that is not missing on.
    What classes came with a value of a column before is an input, too. Columns and classes may come and go.
    Fifteen networks that differ in width, rule and rate, one of them recurrent, learn from every row by
    Hamiltonian Learning in compiled loops, and are mixed by how well each predicted the latest classes.

    Rows learned one by one and in blocks lead to the same state if a block needs no new places; `learn_many` says
    what differs otherwise.

    Args:
        seed: Of the first weights.

    Example:
        >>> import hamlearn as hl
        >>> model = hl.estimators.Classifier()
        >>> for hour in range(60):
        ...     x = {"hour": hour % 24, "day": "weekend" if hour >= 48 else "weekday"}
        ...     model.learn_one(x, "open" if 8 <= hour % 24 < 18 else "closed")
        >>> model.predict_one({"hour": 12, "day": "weekday"})
        'open'
        >>> model
        Classifier(seed=0, 60 rows learned)
    """

    kind = "classifier"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._codes: dict[Hashable, int] = {}
        self._labels: list[Any] = []

    @property
    def classes(self) -> list[Any]:
        """The classes in the order in which they came."""
        return list(self._labels)

    def learn_many(self, X: Any, y: Sequence[Any] | np.ndarray) -> None:
        """Learn many rows, in order: the same as `learn_one` for each, if no new places are needed in between.

        A column gets a place with its first value that is not missing, or at once in a table of numbers, and a
        text when it first comes; there are places for 4 classes, then for 8, 16, …. `learn_many` makes all places
        that `X` and `y` need before the first row is learned, and `learn_one` only when a row needs them. Where
        they are not needed by the first row already, the answers to `X` and later ones differ somewhat, most of
        all right after a new column came.
        """
        self.predict_proba_then_learn(X, y)

    def predict_one(self, x: Row) -> Any:
        """The most likely class of `x`; `None` before the first row was learned."""
        p = self._probabilities(x)
        return None if p is None else self._labels[int(p.argmax())]

    def predict_proba_one(self, x: Row) -> dict[Any, float]:
        """The probability of each class that was seen so far."""
        p = self._probabilities(x)
        if p is None:
            return {}
        exact = p.astype(np.float64)
        return dict(zip(self._labels, (exact / exact.sum()).tolist(), strict=True))

    def predict_proba_many(self, X: Any) -> np.ndarray:
        """Probabilities of many rows, one column for each of `classes`."""
        rows, known = as_rows(X), len(self._labels)
        out = np.zeros((len(rows), known), dtype=np.float32)
        for start, size, pipeline in self._ask_many(rows):
            out[start : start + size] = pipeline.asked_answers[0][:size, :known]
        return out

    def predict_many(self, X: Any) -> np.ndarray:
        """The most likely classes of many rows; `None` before the first row was learned."""
        return self._named(self.predict_proba_many(X))

    def predict_then_learn(self, X: Any, y: Sequence[Any] | np.ndarray, delay: int = 0) -> np.ndarray:
        """Test-then-train: the most likely class of each row, from before its class was learned.

        The answers are those of a loop of `predict_one` and `learn_one`: `None` before any class is known. With a
        `delay` of 0 they differ if columns, texts or more classes than there are places for come for the first
        time after the first row of `X`, as `learn_many` says.

        Args:
            X: Rows.
            y: Their classes.
            delay: How many rows later each class becomes known.
        """
        return self._named(self.predict_proba_then_learn(X, y, delay))

    def predict_proba_then_learn(self, X: Any, y: Sequence[Any] | np.ndarray, delay: int = 0) -> np.ndarray:
        """Test-then-train: the probabilities of each row's classes, from before its class was learned.

        Classes that are not known yet have probability 0, and the others sum to 1. Before any class is known, all
        are 0. `delay`, and what differs from a loop of `predict_proba_one` and `learn_one`, are as in
        `predict_then_learn`.
        """
        labels = y.tolist() if isinstance(y, np.ndarray) else list(y)
        rows, known = self._rows_of(X, labels), len(self._labels)
        if delay:
            return self._late_proba(rows, labels, delay)
        codes = self._coded(labels)
        # A class becomes possible where it comes first: a block begins there.
        first = [codes.index(code) for code in range(known, len(self._labels))]
        out = np.zeros((len(labels), len(self._labels)), dtype=np.float32)
        for start, size, pipeline in self._blocks(rows, first):
            before = np.zeros(len(self._labels), dtype=np.float32)
            if start in first and pipeline.encoder.rows:
                # The answer from before its class can be one.
                pipeline.asked[0] = pipeline.raw[0]
                pipeline.ask(1)
                before[:] = pipeline.asked_answers[0][0, : len(before)]
            self._set(codes[start : start + size], pipeline)
            pipeline.learn(size)
            out[start : start + size] = pipeline.answers[0][:size, : len(self._labels)]
            if start in first:
                out[start] = before
        return out

    def _late_proba(self, rows: Rows, labels: Sequence[Any], delay: int) -> np.ndarray:
        answered = []
        for _, pipeline in self._late(rows, labels, delay):
            answered.append(
                np.zeros(0) if pipeline is None else pipeline.asked_answers[0][0, : len(self._labels)].copy()
            )
        out = np.zeros((len(labels), len(self._labels)), dtype=np.float32)
        for row, p in enumerate(answered):
            out[row, : len(p)] = p
        return out

    def _probabilities(self, x: Row) -> np.ndarray | None:
        pipeline = self._ask(x)
        return None if pipeline is None else pipeline.asked_answers[0][0, : len(self._labels)]

    def _checked(self, y: Any) -> int:
        return self._coded([y])[0]

    def _named(self, probabilities: np.ndarray) -> np.ndarray:
        names = np.array(self._labels) if len({type(label) for label in self._labels}) == 1 else None
        if names is None or names.ndim != 1:
            names = np.empty(len(self._labels), dtype=object)
            names[:] = self._labels
        answered: np.ndarray = np.asarray(probabilities.any(1))
        if len(names) and answered.all():
            return names[probabilities.argmax(1)]
        found = np.empty(len(answered), dtype=object)  # all `None`
        if answered.any():
            found[answered] = names[probabilities[answered].argmax(1)]
        return found

    def _coded(self, labels: Sequence[Any]) -> list[int]:
        """The places of classes; new ones get theirs, once all are found to be classes."""
        codes = self._codes
        try:
            return [codes[label] for label in labels]
        except (KeyError, TypeError):
            for label in labels:
                _require_class(label)
        for label in labels:
            if label not in codes:
                codes[label] = len(codes)
                self._labels.append(plain(label))
        return [codes[label] for label in labels]

    def _set(self, targets: Sequence[int], pipeline: Pipeline) -> None:
        codes, size, mask = targets, len(targets), pipeline.task.mask
        if self._opened < len(self._labels):
            for code in sorted(set(codes)):
                if mask[code] == CLOSED:
                    pipeline.open(code)
                    self._opened += 1
        pipeline.y[:size] = 0.0
        pipeline.y[range(size), codes] = 1.0

    _opened = 0

    def _answers(self) -> int:
        return len(self._labels)

    def _task(self, outputs: int) -> ClassTask:
        return ClassTask(outputs)

    def _outputs(self) -> int:
        places = FIRST_PLACES
        while places < len(self._labels):
            places *= 2
        return places

    def _about(self) -> dict[str, Any]:
        return super()._about() | {"classes": self._labels}

    def _take(self, tensors: Any, about: dict[str, Any]) -> None:
        super()._take(tensors, about)
        self._labels = list(about["classes"])
        self._codes = {label: code for code, label in enumerate(self._labels)}
        self._opened = 0 if self._pipeline is None else int((self._pipeline.task.mask > CLOSED).sum())


def _require_class(label: Any) -> None:
    if is_missing(label) or not isinstance(label, Hashable):
        raise SampleError(f"y={label!r} is not a class: give a text, a number or a truth value")
