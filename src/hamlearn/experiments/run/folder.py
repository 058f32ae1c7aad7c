"""The folder of a run: its files, whether a run may continue there, its result, and its report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamlearn import record
from hamlearn._version import __version__
from hamlearn.errors import ConfigError
from hamlearn.evaluate.scores import Scores
from hamlearn.experiments.run.build import build_learner, build_network, build_stream
from hamlearn.experiments.run.config import ABOUT, Config, load
from hamlearn.experiments.run.scores import build_scores
from hamlearn.learner import Learner
from hamlearn.record._whole import write_bytes, write_text
from hamlearn.streams import Stream
from hamlearn.streams.live.source import public

MAY_CHANGE = ("run.steps", "run.title", "run.out", "run.threads", "checkpoint.every", "records.report")
"""What a resumed run may have otherwise than before: none of it changes what is learned or recorded."""

CONFIG, CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT = (
    "config.toml",
    "checkpoint.safetensors",
    "record.jsonl",
    "speed.jsonl",
    "resumed.jsonl",
    "report.html",
    "result.json",
)
BOARD = "tensorboard"
_ADDRESSES = ("stream.address", "stream.source")


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        folder: Where its files are.
        steps: Samples that were taken in all, and labels that came after their samples.
        diverging: Since which sample the run diverges, as `record.Divergence` judges; `None` if it does not.
        ended: Mean loss of the last block and the threshold, if the run ended worse than it began; see
            `record.Divergence.ended`.
        signal: Number of the signal that stopped the run early; `None` if it came to its end.
        scores: Metrics over all samples.
        window: Metrics over the last `window_size`.
        baselines: Metrics of simple guesses on the same samples: names of guesses to metrics.
        behind: In words, each baseline that the learner is behind.
        window_size: Samples of `window`.
    """

    folder: Path
    steps: int
    diverging: int | None = None
    ended: tuple[float, float] | None = None
    signal: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    window_size: int | None = None

    def summary(self) -> str:
        """The result in one line.

        Example:
            >>> Result(Path("out"), 1268, scores={"MAE": 0.6104}, window={"MAE": 0.197}, window_size=200).summary()
            '1,268 samples · MAE 0.61 (last 200: 0.197) · out'
        """
        parts = [f"{self.steps:,} samples"]
        for name, value in self.scores.items():
            beside = [f"last {self.window_size:,}: {self.window[name]:.3g}"] if name in self.window else []
            beside += [f"{kind} {scores[name]:.3g}" for kind, scores in self.baselines.items() if name in scores]
            parts.append(f"{name} {value:.3g}" + (f" ({'; '.join(beside)})" if beside else ""))
        report = self.folder / REPORT
        return " · ".join([*parts, f"report: {report}" if report.exists() else str(self.folder)])

    @property
    def warnings(self) -> list[str]:
        """What is not as it should be although the run ended, with remedies."""
        remedy = "Lower hyper.beta (or hyper.lr), or set stream.standardize = true."
        found = list(self.behind)
        if self.diverging is not None:
            found.append(
                f"Diverging since sample {self.diverging}: the loss is worse than at the start or than guessing, "
                f"and the weights grow. {remedy}"
            )
        elif self.ended is not None:
            last, level = self.ended
            found.append(
                f"The run ended worse than it began: a mean loss of {last:.3g}; {level:.3g} is bad. {remedy}"
            )
        return found


@dataclass(frozen=True)
class Opened:
    """What a configuration describes, built.

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
    return Opened(config, stream, classes, learner, build_scores(config))


def describe(path: str | Path) -> str:
    """Check a configuration file and build what it describes, in a few words; nothing runs.

    Raises:
        ConfigError: For a mistake in the file.
    """
    config = load(Path(path))
    with torch_as(config["run"]), torch.random.fork_rng(devices=[]):
        opened = build(config)
    count = sum(weight.numel() for weight in opened.learner.network.parameters())
    return f"{config['stream']['kind']} ({opened.stream.spec}), {config['network']['kind']} with {count:,} weights"


def reopen(folder: str | Path) -> Opened:
    """The learner and the stream of a run, as its last checkpoint has them; nothing is written.

    Args:
        folder: That `hamlearn run` wrote.

    Raises:
        ConfigError: The folder does not hold a run.
        CheckpointError: The checkpoint cannot be read.
    """
    folder = Path(folder)
    config = configuration(folder)
    _require_file(folder, CHECKPOINT)
    with torch_as(config["run"]), torch.random.fork_rng(devices=[]):
        opened = build(config)
    opened.learner.load(folder / CHECKPOINT)
    return opened


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


def configuration(folder: Path) -> Config:
    """The configuration of a run folder."""
    _require_file(folder, CONFIG)
    return load(folder / CONFIG)


def _require_file(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise ConfigError(f"{folder} has no {name}: give a folder that hamlearn run wrote")


def require_free(folder: Path, config: Config, resume: bool) -> None:
    """Refuse a folder whose run would be lost, or continue differently; without a checkpoint there is no run."""
    if not (folder / CHECKPOINT).exists():
        return
    if not resume:
        raise ConfigError(
            f"{folder} has a run already. Continue it with --resume, replace it with --overwrite, or give another "
            "folder with --out or run.out."
        )
    for section, keys in configuration(folder).items():
        for name in {**keys, **config[section]}:
            was, now, key = keys.get(name), config[section].get(name), f"{section}.{name}"
            if key not in MAY_CHANGE and was != now:
                raise ConfigError(
                    f"{folder} was run with {key} = {was!r}, now it is {now!r}. Put it back to continue, or start "
                    f"a new run in another folder with --out. Free to change are {', '.join(MAY_CHANGE)}."
                )


def prepare(folder: Path, path: Path, opened: Opened, overwrite: bool) -> None:
    """Remove the files of a run that is not continued, and describe the one that begins.

    A run that stopped before its first checkpoint begins again from the start.
    """
    if overwrite or not (folder / CHECKPOINT).exists():
        for name in (CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT, ABOUT):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / BOARD, ignore_errors=True)
    if path.resolve() != (folder / CONFIG).resolve():
        write_bytes(folder / CONFIG, path.read_bytes())
        write_text(folder / ABOUT, json.dumps(_about(path, opened), indent=1) + "\n")


def _about(path: Path, opened: Opened) -> dict[str, object]:
    """What a program needs that reads the folder, without the file that was given."""
    return {
        "hamlearn": __version__,
        "origin": str(path.absolute().parent),
        "entries": getattr(opened.stream, "entries", None),
        "config": opened.config,
    }


def finish(opened: Opened, result: Result) -> Result:
    """Write the result and the report of a run that ended."""
    folder = result.folder
    names = ("steps", "scores", "window", "baselines", "behind", "diverging")
    write_text(folder / RESULT, json.dumps({name: getattr(result, name) for name in names}, indent=1) + "\n")
    if opened.config["records"]["report"] and (folder / RECORD).stat().st_size:
        _write_report(opened.config, folder)
    return result


def report(folder: str | Path) -> Path:
    """Write the HTML report of a run folder again, also while the run goes on; returns its path."""
    folder = Path(folder)
    _require_file(folder, RECORD)
    _write_report(configuration(folder), folder)
    return folder / REPORT


def _write_report(config: Config, folder: Path) -> None:
    rows = record.read(folder / RESUMED) if (folder / RESUMED).is_file() else []
    resumed = [row["step"] for row in rows if "step" in row]
    title, about = config["run"]["title"], facts(config)
    record.html(
        folder / RECORD,
        folder / REPORT,
        title,
        about,
        speed=folder / SPEED,
        resumed=resumed,
        result=folder / RESULT,
    )


def facts(config: Config) -> dict[str, Any]:
    """What was run, for a table: every key that has a value, and no password."""
    found = {
        f"{section}.{name}": value
        for section, keys in config.items()
        for name, value in keys.items()
        if value is not None and section != "records"
    }
    return {name: public(value) if name in _ADDRESSES else value for name, value in found.items()}
