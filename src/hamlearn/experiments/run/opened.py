"""All that a configuration describes, built, and not yet run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hamlearn.errors import ConfigError, install
from hamlearn.evaluate.scores import Scores
from hamlearn.experiments.run.build import LOSSES, build_learner, build_network, build_stream
from hamlearn.experiments.run.config import Config, load
from hamlearn.experiments.run.keys import unknown
from hamlearn.learner import Learner
from hamlearn.streams import Stream


@dataclass(frozen=True)
class Opened:
    """What a configuration describes.

    Attributes:
        config: All sections.
        stream: At its beginning; for a run that was reopened, at the place of the checkpoint.
        classes: Number of classes of the target; `None` if it is a number.
        learner: New; for a run that was reopened, as it was saved.
        scores: Metrics, likewise.
    """

    config: Config
    stream: Stream
    classes: int | None
    learner: Learner
    scores: Scores


def build(config: Config) -> Opened:
    """Build the stream, the network, the learner and the metrics of a configuration; no step is taken."""
    torch.manual_seed(config["run"]["seed"])
    stream, classes = build_stream(config)
    learner = build_learner(config, build_network(config, stream, classes))
    return Opened(config, stream, classes, learner, _scores(config))


def describe(path: str | Path) -> str:
    """Check a configuration file, build what it describes, and say in a few words what that is; nothing runs.

    Raises:
        ConfigError: For a mistake in the file.
    """
    config = load(Path(path))
    with torch_as(config["run"]), torch.random.fork_rng(devices=[]):
        opened = build(config)
    count = sum(weight.numel() for weight in opened.learner.network.parameters())
    return f"{config['stream']['kind']} ({opened.stream.spec}), {config['network']['kind']} with {count:,} weights"


@contextmanager
def torch_as(settings: dict[str, Any]) -> Iterator[None]:
    """PyTorch with the floating-point type and the threads that the section [run] asks for."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        torch.set_default_dtype(getattr(torch, settings["dtype"]))
        torch.set_num_threads(settings["threads"] or threads)
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _scores(config: Config) -> Scores:
    """The metrics, each of which fits the loss and can be resumed exactly."""
    settings, loss = config["records"], config["loss"]["kind"]
    names = settings["metrics"]
    metrics = {name: _metric(name, loss) for name in names} if names is not None else None
    scores = Scores(metrics, settings["metric_window"], loss=LOSSES[loss], late=config["learner"]["late"])
    scores.require_resumable()
    return scores


def _metric(name: str, loss: str) -> Any:
    """A metric of River by its name."""
    try:
        from river import metrics
    except ImportError as error:
        raise ConfigError(f"records.metrics = [{name!r}] needs River: {install('river')}") from error
    known = {n: kind for n in metrics.__all__ if isinstance(kind := getattr(metrics, n, None), type)}
    if name not in known:
        raise ConfigError(unknown(f"{name!r} in records.metrics", name, list(known)))
    if loss == "cross_entropy" and issubclass(known[name], metrics.base.RegressionMetric):
        raise ConfigError(
            f'records.metrics has {name!r}, which compares numbers, but loss.kind = "cross_entropy" learns '
            "classes. Give a metric of classification, for example Accuracy."
        )
    try:
        return known[name]()
    except TypeError as error:
        raise ConfigError(
            f"records.metrics has {name!r}, which needs settings of its own ({error}) that a file cannot give. "
            "Choose another, or use hamlearn.evaluate in Python."
        ) from error
