"""`hamlearn run CONFIG.toml`: a stream, a network, a learner, records and checkpoints from one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamlearn import record
from hamlearn._scores import Scores
from hamlearn._scores.carried import Carried
from hamlearn.errors import ConfigError
from hamlearn.evaluate import scored
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.run_build import build_learner, build_network, build_stream
from hamlearn.experiments.run_config import Config, load
from hamlearn.experiments.run_keys import unknown
from hamlearn.record._whole import write_bytes, write_text

FIELDS = ("step", "t", "loss", "hamiltonian", "h", "z", "omega", "theta")
"""Of the record: nothing that a clock says, so that two runs of one configuration write the same file."""

MAY_CHANGE = {"run.steps", "run.title", "run.out", "checkpoint.every", "records.report"}
"""What a resumed run may have otherwise than before: none of it changes what is learned or recorded."""

CHECKPOINT, RECORD, SPEED, REPORT, RESULT = (
    "checkpoint.safetensors",
    "record.jsonl",
    "speed.jsonl",
    "report.html",
    "result.json",
)


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        folder: Where its files are.
        steps: Samples that were learned from, in all.
        scores: Metrics over all of them.
        window: Metrics over the last `records.metric_window`.
    """

    folder: Path
    steps: int
    scores: dict[str, float] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)


def run(path: str | Path, resume: bool = False, out: str | Path | None = None, progress: bool = True) -> Result:
    """Run a configuration to its end.

    Args:
        path: The TOML file; paths in it are relative to its folder, but for `run.out`.
        resume: Go on from the last checkpoint in the output folder, or from the start if there is none.
            The result is, to the bit, that of a run which was never stopped.
        out: The output folder, instead of `run.out`.
        progress: Whether to draw a progress bar.

    Raises:
        ConfigError: For a mistake in the file, a folder that has a run already while `resume` is not set, or one
            that another process is working in.
    """
    path = Path(path)
    config = load(path)
    folder = Path(config["run"]["out"] if out is None else out)
    with alone_in(folder):
        _prepare(folder, path, resume)
        return _with_settings(config, path.parent, folder, progress)


def _with_settings(config: Config, base: Path, folder: Path, progress: bool) -> Result:
    """Run with the type and the threads that the file asks for, and put PyTorch's back."""
    settings = config["run"]
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        torch.set_default_dtype(getattr(torch, settings["dtype"]))
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        return _run(config, base, folder, progress)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _prepare(folder: Path, path: Path, resume: bool) -> None:
    files = [folder / name for name in (CHECKPOINT, RECORD, SPEED)]
    if not resume and any(file.exists() for file in files):
        raise ConfigError(
            f"{folder} has a run already. Go on with it by --resume, or give another folder by --out or run.out."
        )
    kept = folder / "config.toml"
    if files[0].exists() and kept.exists():
        _require_same(load(kept), load(path), folder)
    if not files[0].exists():
        # Stopped before its first checkpoint: what it wrote is written again from the start.
        for file in files[1:]:
            file.unlink(missing_ok=True)
    if path.resolve() != kept.resolve():
        write_bytes(kept, path.read_bytes())


def _require_same(kept: Config, new: Config, folder: Path) -> None:
    """Refuse to go on with a run whose configuration says that it would have gone another way."""
    for section, keys in kept.items():
        for name, value in keys.items():
            key = f"{section}.{name}"
            if key not in MAY_CHANGE and new[section][name] != value:
                raise ConfigError(
                    f"{folder} was run with {key} = {value!r}, now it is {new[section][name]!r}. Put it back to "
                    "go on, or start a new run in another folder by --out. Free to change are "
                    f"{', '.join(sorted(MAY_CHANGE))}."
                )


def _run(config: Config, base: Path, folder: Path, progress: bool) -> Result:
    torch.manual_seed(config["run"]["seed"])
    stream, classes = build_stream(config, base)
    learner = build_learner(config, build_network(config, stream, classes))
    scores = _scores(config["records"], config["loss"]["kind"])
    steps = config["run"]["steps"]
    if steps is None and stream.length == math.inf:
        raise ConfigError("run.steps is missing, and the stream is endless. Give a whole number of at least 1.")
    resumed = (folder / CHECKPOINT).exists()
    if resumed:
        learner.load(folder / CHECKPOINT)
    total = steps if steps is not None else stream.length
    sinks = _sinks(config["records"], folder, int(total) if progress and total is not None else None, progress)
    every, result = config["checkpoint"]["every"], Result(folder, learner.position)
    with record.Recorder(learner, *sinks, stream=stream) as recorder:
        parts = {"records": recorder, "scores": scores}
        bundle = Carried(stream, parts, learner.position)
        left = None if steps is None else max(steps - learner.position, 0)
        try:
            engine, chunk = config["learner"]["engine"], config["learner"]["chunk"]
            reports = learner.run(bundle, left, engine, chunk, resume=resumed)
            for evaluation in recorder(scored(reports, scores)):
                result = Result(folder, recorder.step, evaluation.scores, evaluation.window)
                if recorder.step % every == 0:
                    learner.save(folder / CHECKPOINT)
            learner.save(folder / CHECKPOINT)
        finally:
            bundle.close()
    return _finish(config, result, scores)


def _finish(config: Config, result: Result, scores: Scores) -> Result:
    folder = result.folder
    if not result.scores:
        # A finished run that was resumed takes no step, but its scores are in the checkpoint.
        result = Result(folder, result.steps, *scores.read())
    text = json.dumps({"steps": result.steps, "scores": result.scores, "window": result.window}, indent=1)
    write_text(folder / RESULT, text + "\n")
    if config["records"]["report"] and (folder / RECORD).stat().st_size:
        _write_report(config, folder)
    return result


def report(folder: str | Path) -> Path:
    """Write the HTML report of a folder's records anew, also of a run that is still going on; answers its path."""
    folder = Path(folder)
    for name in ("config.toml", RECORD):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} has no {name}: give a folder that hamlearn run wrote")
    _write_report(load(folder / "config.toml"), folder)
    return folder / REPORT


def _write_report(config: Config, folder: Path) -> None:
    facts = {
        f"{section}.{name}": value
        for section, keys in config.items()
        for name, value in keys.items()
        if value is not None and section != "records"
    }
    record.html(folder / RECORD, folder / REPORT, config["run"]["title"], facts, speed=folder / SPEED)


def _scores(settings: Mapping[str, Any], loss: str) -> Scores:
    """The metrics: each of them fits the loss, and would go on exactly after a resume."""
    scores = Scores(_metrics(settings["metrics"], loss), settings["metric_window"], None)
    scores.require_resumable()
    return scores


def _metrics(names: list[str], loss: str) -> dict[str, Any]:
    if not names:
        return {}
    try:
        from river import metrics
    except ImportError as error:
        raise ConfigError(f"records.metrics = {names} needs River. Install hamlearn[river].") from error
    known = {n: kind for n in metrics.__all__ if isinstance(kind := getattr(metrics, n, None), type)}
    made = {}
    for name in names:
        if name not in known:
            raise ConfigError(unknown(f"metric {name!r} in records.metrics", name, list(known)))
        if loss == "cross_entropy" and issubclass(known[name], metrics.base.RegressionMetric):
            raise ConfigError(
                f'records.metrics has {name!r}, which compares numbers, but loss.kind = "cross_entropy" learns '
                "classes. Allowed are metrics of classification, for example Accuracy."
            )
        try:
            made[name] = known[name]()
        except TypeError as error:
            raise ConfigError(
                f"the metric {name!r} in records.metrics needs settings of its own ({error}), which a file cannot "
                "give. Choose another, or use hamlearn.evaluate in Python."
            ) from error
    return made


def _sinks(settings: Mapping[str, Any], folder: Path, total: int | None, progress: bool) -> list[record.Sink]:
    n = settings["windows"]
    policy: record.Policy = record.Every(settings["every"]) if n is None else record.Windows(n)
    pace = record.Every(n or settings["every"])
    sinks: list[record.Sink] = [
        record.JsonLines(folder / RECORD, policy, FIELDS, append=True),
        record.JsonLines(folder / SPEED, pace, ("step", "seconds", "dropped"), append=True),
    ]
    if settings["tensorboard"]:
        sinks.append(record.TensorBoard(folder / "tensorboard", pace, FIELDS))
    if progress:
        sinks.append(record.Progress(total))
    return sinks
