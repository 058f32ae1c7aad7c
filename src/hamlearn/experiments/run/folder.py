"""The folder of a run: its files, whether a run may continue there, its result, and its report."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamlearn import record
from hamlearn._version import __version__
from hamlearn.errors import ConfigError
from hamlearn.experiments.run.config import ABOUT, Config, load
from hamlearn.experiments.run.opened import Opened, build, torch_as
from hamlearn.learner.learner import carry_along
from hamlearn.state import files
from hamlearn.streams.live.source import public

MAY_CHANGE = ("run.steps", "run.title", "run.out", "run.threads", "checkpoint.every", "records.report")
"""What a resumed run may have otherwise than before: none of it changes what is learned or recorded."""

CONFIG, CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT, BOARD = (
    "config.toml",
    "checkpoint.safetensors",
    "record.jsonl",
    "speed.jsonl",
    "resumed.jsonl",
    "report.html",
    "result.json",
    "tensorboard",
)
_OF_ONE_RUN = (CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT, ABOUT, "predictions.csv", "predictions.parquet")
_ADDRESSES = ("address", "source")
"""Keys of `[stream]` that may hold a password."""


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
        window_size: Samples of the window.
        labels: What became of samples whose labels were to come later, as `learner.labels` counts them; `None` if
            all targets came with their samples.
        skipped: Rows of the stream that were left out.
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
    labels: dict[str, int] | None = None
    skipped: int = 0

    def summary(self) -> str:
        """The result in one line.

        Example:
            >>> Result(Path("out"), 1268, scores={"MAE": 0.6104}, window={"MAE": 0.197}, window_size=200).summary()
            '1,268 samples · MAE 0.61 (last 200: 0.197) · out'
        """
        parts = [f"{self.steps:,} samples"]
        if self.skipped:
            parts.append(f"{self.skipped:,} row{'s' * (self.skipped > 1)} left out")
        if self.labels is not None and self.labels["late"]:
            names = {"learned": "learned", "late": "too late", "waiting": "samples wait"}
            counts = [f"{self.labels[name]:,} {words}" for name, words in names.items()]
            parts.append("labels: " + ", ".join(counts))
        for name, value in self.scores.items():
            beside = [f"last {self.window_size:,}: {self.window[name]:.3g}"] if name in self.window else []
            beside += [f"{kind} {scores[name]:.3g}" for kind, scores in self.baselines.items() if name in scores]
            parts.append(f"{name} {value:.3g}" + (f" ({'; '.join(beside)})" if beside else ""))
        report = self.folder / REPORT
        return " · ".join([*parts, f"report: {report}" if report.exists() else str(self.folder)])

    @property
    def warnings(self) -> list[str]:
        """Problems of a run that has ended, with remedies."""
        remedy = "Lower hyper.beta (or hyper.lr), or set stream.standardize = true."
        found = list(self.behind)
        if self.skipped and not self.steps:
            found.append(
                f"Nothing was learned: all rows that were read, {self.skipped:,} of them, were left out. Set "
                'stream.bad = "raise" to see what is wrong with the first one. stream.missing and stream.finite '
                "can leave rows out too."
            )
        if self.labels is not None and self.labels["late"]:
            found.append(
                f"{self.labels['late']:,} labels came for samples that were not kept, and were not learned. "
                "Raise learner.late, the number of samples that are kept for their labels."
            )
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


def reopen(folder: str | Path) -> Opened:
    """The learner and the stream of a run as its last checkpoint has them; nothing is written.

    Args:
        folder: That `hamlearn run` wrote.

    Raises:
        ConfigError: The folder does not hold a run.
        CheckpointError: The checkpoint cannot be read.
    """
    folder = Path(folder)
    _require_file(folder, CHECKPOINT)
    config = configuration(folder)
    with torch_as(config["run"]), torch.random.fork_rng(devices=[]):
        opened = build(config)
        opened.learner.load(folder / CHECKPOINT)
        # A run of no steps puts the stream to its place; live feeds have none.
        carry_along(opened.learner, {"records": _NoRecords(), "scores": opened.scores})
        for _ in () if opened.stream.live else opened.learner.run(opened.stream, 0, resume=True):
            pass
    return opened


class _NoRecords:
    """Stands for the records of a run that is only looked at."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: object) -> None:
        pass


def configuration(folder: Path) -> Config:
    """The configuration of a run folder."""
    _require_file(folder, CONFIG)
    return load(folder / CONFIG)


def _require_file(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise ConfigError(f"{folder} has no {name}: give a folder that hamlearn run wrote")


def require_free(folder: Path, config: Config, resume: bool) -> None:
    """Raise if the run in a folder would be lost, or continue differently; without a checkpoint there is none."""
    if not (folder / CHECKPOINT).exists():
        return
    if not resume:
        raise ConfigError(
            f"{folder} has a run already. Continue it with --resume, replace it with --overwrite, or give another "
            "folder with --out or run.out."
        )
    before, after = facts(configuration(folder), every=True), facts(config, every=True)
    for key in {**before, **after}:
        was, now = before.get(key), after.get(key)
        if key not in MAY_CHANGE and was != now:
            raise ConfigError(
                f"{folder} was run with {key} = {was!r}, now it is {now!r}. Put it back to continue, or start a "
                f"new run in another folder with --out. Free to change are {', '.join(MAY_CHANGE)}."
            )


def prepare(folder: Path, path: Path, config: Config, overwrite: bool) -> None:
    """Remove the files of a run that is not continued, and describe the one that begins.

    A run that stopped before its first checkpoint begins again from the start.
    """
    if overwrite or not (folder / CHECKPOINT).exists():
        for name in _OF_ONE_RUN:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / BOARD, ignore_errors=True)
    if path.resolve() != (folder / CONFIG).resolve():
        data = path.read_bytes()
        for address in (config["stream"][name] for name in _ADDRESSES if name in config["stream"]):
            # Passwords stay in the file of the user.
            data = data.replace(address.encode(), public(address).encode())
        files.replace(folder / CONFIG, data)
        about = {"hamlearn": __version__, "origin": str(path.absolute().parent)}
        files.replace(folder / ABOUT, (json.dumps(about, indent=1) + "\n").encode())


def finish(config: Config, result: Result) -> None:
    """Write the result and the report of a run that ended."""
    folder = result.folder
    names = ("steps", "scores", "window", "baselines", "behind", "diverging", "window_size", "labels", "skipped")
    found = {name: value for name, value in asdict(result).items() if name in names}
    files.replace(folder / RESULT, (json.dumps(found, indent=1) + "\n").encode())
    if config["records"]["report"] and (folder / RECORD).stat().st_size:
        _write_report(config, folder)


def report(folder: str | Path) -> Path:
    """Write the HTML report of a run folder again, also during the run; returns its path."""
    folder = Path(folder)
    _require_file(folder, RECORD)
    _write_report(configuration(folder), folder)
    return folder / REPORT


def _write_report(config: Config, folder: Path) -> None:
    rows = record.read(folder / RESUMED) if (folder / RESUMED).is_file() else []
    resumed = [row["step"] for row in rows if "step" in row]
    title, about, result = config["run"]["title"], facts(config), folder / RESULT
    record.html(folder / RECORD, folder / REPORT, title, about, folder / SPEED, resumed, result)


def facts(config: Config, every: bool = False) -> dict[str, Any]:
    """What was run, for a table: every key that has a value, and no password.

    Args:
        config: All sections.
        every: Whether to include the section `[records]`, which says nothing of what is learned.
    """
    found = {}
    for section, keys in config.items():
        for name, value in keys.items():
            hidden = section == "stream" and name in _ADDRESSES
            if value is not None and (every or section != "records"):
                found[f"{section}.{name}"] = public(value) if hidden else value
    return found
