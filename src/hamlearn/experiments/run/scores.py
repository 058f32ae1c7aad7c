"""The metrics of a run, by name."""

from __future__ import annotations

from typing import Any

from hamlearn.errors import ConfigError, install
from hamlearn.evaluate.scores import Scores
from hamlearn.experiments.run.build import LOSSES
from hamlearn.experiments.run.config import Config
from hamlearn.experiments.run.keys import unknown


def build_scores(config: Config) -> Scores:
    """The metrics, each of which fits the loss and can be resumed exactly."""
    settings, loss = config["records"], config["loss"]["kind"]
    scores = Scores(_metrics(settings["metrics"], loss), settings["metric_window"], loss=LOSSES[loss])
    scores.require_resumable()
    return scores


def _metrics(names: list[str] | None, loss: str) -> dict[str, Any] | None:
    if not names:
        return None if names is None else {}
    try:
        from river import metrics
    except ImportError as error:
        raise ConfigError(f"records.metrics = {names} needs River: {install('river')}") from error
    known = {n: kind for n in metrics.__all__ if isinstance(kind := getattr(metrics, n, None), type)}
    made = {}
    for name in names:
        if name not in known:
            raise ConfigError(unknown(f"{name!r} in records.metrics", name, list(known)))
        if loss == "cross_entropy" and issubclass(known[name], metrics.base.RegressionMetric):
            raise ConfigError(
                f'records.metrics has {name!r}, which compares numbers, but loss.kind = "cross_entropy" learns '
                "classes. Give a metric of classification, for example Accuracy."
            )
        try:
            made[name] = known[name]()
        except TypeError as error:
            raise ConfigError(
                f"records.metrics has {name!r}, which needs settings of its own ({error}) that a file cannot "
                "give. Choose another, or use hamlearn.evaluate in Python."
            ) from error
    return made
