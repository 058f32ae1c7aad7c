"""The folder of a run: its files, whether a run may continue there, and its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from hamlearn import record
from hamlearn._version import __version__
from hamlearn.errors import ConfigError
from hamlearn.experiments.run.config import Config
from hamlearn.experiments.run.opened import Opened, build, torch_as
from hamlearn.experiments.run.result import REPORT, Result
from hamlearn.learner.learner import carry_along
from hamlearn.state import files
from hamlearn.streams.live.source import public

MAY_CHANGE = ("run.steps", "run.title", "run.out", "run.threads", "checkpoint.every", "records.report")
"""What a resumed run may have otherwise than before: none of it changes what is learned or recorded."""

CONFIG, CHECKPOINT, RECORD, SPEED, RESUMED, RESULT, BOARD = (
    "config.json",
    "checkpoint.safetensors",
    "record.jsonl",
    "speed.jsonl",
    "resumed.jsonl",
    "result.json",
    "tensorboard",
)
_OF_ONE_RUN = (CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT, "predictions.csv", "predictions.parquet")
_ADDRESSES = ("address", "source")
"""Keys of `[stream]` that may hold a password."""


def configuration(folder: Path) -> Config:
    """The configuration of a run folder, with all defaults that the run had."""
    _require_file(folder, CONFIG)
    try:
        sections = json.loads((folder / CONFIG).read_text("utf-8"))
        return {name: keys for name, keys in sections.items() if name != "hamlearn"}
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG} is not what hamlearn run wrote: {error}") from error


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


def prepare(folder: Path, config: Config, overwrite: bool) -> None:
    """Remove the files of a run that is not continued, and describe the one that begins.

    A run that stopped before its first checkpoint begins again from the start.
    """
    if overwrite or not (folder / CHECKPOINT).exists():
        for name in _OF_ONE_RUN:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / BOARD, ignore_errors=True)
    _write_json(folder / CONFIG, {"hamlearn": __version__, **_without_passwords(config)})


def finish(config: Config, result: Result) -> None:
    """Write the result and the report of a run that ended."""
    _write_json(result.folder / RESULT, result.as_json())
    if config["records"]["report"] and (result.folder / RECORD).stat().st_size:
        report(result.folder)


def _write_json(path: Path, value: Any) -> None:
    files.replace(path, (json.dumps(value, indent=1) + "\n").encode())


def report(folder: str | Path) -> Path:
    """Write the HTML report of a run folder again, also during the run; returns its path."""
    folder = Path(folder)
    _require_file(folder, RECORD)
    config = configuration(folder)
    rows = record.read(folder / RESUMED) if (folder / RESUMED).is_file() else []
    resumed = [row["step"] for row in rows if "step" in row]
    speed, result = folder / SPEED, folder / RESULT
    title, about = config["run"]["title"], facts(config)
    return record.html(folder / RECORD, folder / REPORT, title, about, speed, resumed, result)


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


def _without_passwords(config: Config) -> Config:
    """Passwords stay in the file of the user."""
    stream = {key: public(value) if key in _ADDRESSES else value for key, value in config["stream"].items()}
    return {**config, "stream": stream}


def facts(config: Config, every: bool = False) -> dict[str, Any]:
    """What was run, for a table: every key that has a value, and no password.

    Args:
        config: All sections.
        every: Whether to include the section `[records]`, which says nothing of what is learned.
    """
    shown = {name: keys for name, keys in _without_passwords(config).items() if every or name != "records"}
    return {f"{s}.{name}": value for s, keys in shown.items() for name, value in keys.items() if value is not None}
