"""`hamlearn run CONFIG.toml`: a stream, a network, a learner, records and checkpoints from one file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hamlearn import record
from hamlearn.errors import ConfigError, install
from hamlearn.evaluate import scored
from hamlearn.evaluate.carried import Carried
from hamlearn.evaluate.scores import Scores
from hamlearn.experiments import run_pipeline
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.foreseen import foreseen
from hamlearn.experiments.run_build import LOSSES, build_learner, build_network, build_stream
from hamlearn.experiments.run_config import Config, load
from hamlearn.experiments.run_derived import unknown
from hamlearn.record._whole import write_bytes, write_text
from hamlearn.streams import Stream
from hamlearn.streams.live.source import public

FIELDS = ("step", "t", "loss", "hamiltonian", "h", "z", "omega", "theta", "diverging")
"""Of the record: nothing that a clock says, so that two runs of one configuration write the same file."""

MAY_CHANGE = {"run.steps", "run.title", "run.out", "checkpoint.every", "records.report"}
"""What a resumed run may have otherwise than before: none of it changes what is learned or recorded."""

CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT = (
    "checkpoint.safetensors",
    "record.jsonl",
    "speed.jsonl",
    "resumed.jsonl",
    "report.html",
    "result.json",
)
BOARD = "tensorboard"
ADDRESSES = ("stream.address", "stream.source")


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        folder: Where its files are.
        steps: Samples that were taken, in all, and labels that came after their samples.
        scores: Metrics over all of them.
        window: Metrics over the last `records.metric_window`.
        diverging: Since which sample the run diverges, as `record.Divergence` judges; `None` where it does not.
        ended: Mean loss of the last block and the threshold, where the run ended worse than it began; see
            `record.Divergence.ended`.
    """

    folder: Path
    steps: int
    scores: dict[str, float] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)
    diverging: int | None = None
    ended: tuple[float, float] | None = None


def run(
    path: str | Path,
    resume: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> Result:
    """Run a configuration to its end.

    Args:
        path: The TOML file; paths in it are relative to its folder, but for `run.out`.
        resume: Go on from the last checkpoint in the output folder, or from the start if there is none.
            The result is, to the bit, that of a run which was never stopped.
        out: The output folder, instead of `run.out`.
        progress: Whether to draw a progress bar.
        overwrite: Start anew in a folder that has a run already, once the stream and the learner could be built;
            what the other run wrote is removed then.

    Raises:
        ConfigError: For a mistake in the file, a folder that has a run already while neither `resume` nor
            `overwrite` is set, or one that another process is working in.
    """
    if resume and overwrite:
        raise ConfigError("resume goes on with a run, overwrite removes it. Give one of them.")
    path = Path(path)
    config = load(path)
    folder = Path(config["run"]["out"] if out is None else out)
    if config["learner"]["pipeline"] is not None:
        if overwrite:
            raise ConfigError(
                f"a pipeline goes on with {folder}: remove the folder, or give another one by --out."
            )
        return _with_settings(config, lambda: _run_pipeline(config, path, folder))
    scores = _scores(config["records"], config["loss"]["kind"])
    with alone_in(folder):
        if not overwrite:
            _check_folder(folder, path, resume)
        return _with_settings(config, lambda: _run(config, path, folder, scores, progress, overwrite))


def _run_pipeline(config: Config, path: Path, folder: Path) -> Result:
    """One rank of a pipeline, under torchrun; alone, the only one."""
    with run_pipeline.job():
        torch.manual_seed(config["run"]["seed"])
        stream, classes = build_stream(config, path.parent)
        _require_end(config, stream)
        folder.mkdir(parents=True, exist_ok=True)
        result = run_pipeline.run(config, stream, classes, folder)
    return Result(folder, result["steps"], {} if result["loss"] is None else {"loss": result["loss"]})


def _require_end(config: Config, stream: Stream) -> None:
    if config["run"]["steps"] is None and stream.length == math.inf:
        raise ConfigError("run.steps is missing, and the stream is endless. Give a whole number of at least 1.")


def _with_settings(config: Config, work: Callable[[], Result]) -> Result:
    """Run with the type and the threads that the file asks for, and put PyTorch's back."""
    settings = config["run"]
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        torch.set_default_dtype(getattr(torch, settings["dtype"]))
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        return work()
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _check_folder(folder: Path, path: Path, resume: bool) -> None:
    """Refuse a folder whose run would be lost, or go on another way; without a checkpoint there is none."""
    if not (folder / CHECKPOINT).exists():
        return
    if not resume:
        raise ConfigError(
            f"{folder} has a run already. Go on with it by --resume, put a new one in its place by --overwrite, "
            "or give another folder by --out or run.out."
        )
    kept = folder / "config.toml"
    if kept.exists():
        _require_same(load(kept), load(path), folder)


def _prepare(folder: Path, path: Path, overwrite: bool) -> None:
    """Remove what an earlier run wrote that this one does not go on with, and keep a copy of the configuration."""
    if overwrite or not (folder / CHECKPOINT).exists():
        # Stopped before its first checkpoint: what it wrote is written again from the start.
        for name in (CHECKPOINT, RECORD, SPEED, RESUMED, REPORT, RESULT):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / BOARD, ignore_errors=True)
    kept = folder / "config.toml"
    if path.resolve() != kept.resolve():
        write_bytes(kept, path.read_bytes())


def _require_same(kept: Config, new: Config, folder: Path) -> None:
    """Refuse to go on with a run whose configuration says that it would have gone another way."""
    for section, keys in kept.items():
        for name, value in keys.items():
            key = f"{section}.{name}"
            now = new[section].get(name)
            if key not in MAY_CHANGE and now != value:
                raise ConfigError(
                    f"{folder} was run with {key} = {value!r}, now it is {now!r}. Put it back to "
                    "go on, or start a new run in another folder by --out. Free to change are "
                    f"{', '.join(sorted(MAY_CHANGE))}."
                )


def _run(config: Config, path: Path, folder: Path, scores: Scores, progress: bool, overwrite: bool) -> Result:
    torch.manual_seed(config["run"]["seed"])
    stream, classes = build_stream(config, path.parent)
    learner = build_learner(config, build_network(config, stream, classes))
    steps = config["run"]["steps"]
    _require_end(config, stream)
    _prepare(folder, path, overwrite)
    resumed = (folder / CHECKPOINT).exists()
    if resumed:
        learner.load(folder / CHECKPOINT)
        with (folder / RESUMED).open("a") as lives:
            lives.write(json.dumps({"step": learner.position}) + "\n")
    watch = record.Divergence()
    bar = record.Progress(foreseen(config, path.parent, stream), watch=watch) if progress else None
    sinks = [watch, *_sinks(config["records"], folder), *([] if bar is None else [bar])]
    # A broker that waits for a checkpoint must not wait for ever.
    every = min(config["checkpoint"]["every"], stream.save_within or config["checkpoint"]["every"])
    result = Result(folder, learner.position)
    fields = {"diverging": lambda report, learner: watch.since}
    with record.Recorder(learner, *sinks, stream=stream, fields=fields) as recorder:
        parts = {"records": recorder, "scores": scores}
        bundle = Carried(stream, parts, learner.position)
        left = None if steps is None else max(steps - learner.position, 0)
        try:
            engine, chunk = config["learner"]["engine"], config["learner"]["chunk"]
            reports = learner.run(bundle, left, engine, chunk, resume=resumed)
            for _ in recorder(scored(reports, scores)):
                result = Result(folder, recorder.step)
                if recorder.step % every == 0:
                    learner.save(folder / CHECKPOINT)
            learner.save(folder / CHECKPOINT)
            if bar is not None:
                bar.finish()
        finally:
            bundle.close()
    return _finish(config, replace(result, diverging=watch.since, ended=watch.ended), scores)


def _finish(config: Config, result: Result, scores: Scores) -> Result:
    folder = result.folder
    if not result.scores:
        # A finished run that was resumed takes no step, but its scores are in the checkpoint.
        all_of_them, window = scores.read()
        result = replace(result, scores=all_of_them, window=window)
    names = ("steps", "scores", "window", "diverging")
    told = {name: getattr(result, name) for name in names} | scores.summary()
    text = json.dumps(told, indent=1)
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
    rows = record.read(folder / RESUMED) if (folder / RESUMED).is_file() else []
    lives = [row["step"] for row in rows if "step" in row]
    what = config["run"]["title"], facts(config)
    record.html(folder / RECORD, folder / REPORT, *what, speed=folder / SPEED, resumed=lives, result=folder / RESULT)


def facts(config: Config) -> dict[str, Any]:
    """What was run, for a table: each key that says something, and no password."""
    found = {
        f"{section}.{name}": value
        for section, keys in config.items()
        for name, value in keys.items()
        if value is not None and section != "records"
    }
    return {name: public(value) if name in ADDRESSES else value for name, value in found.items()}


def _scores(settings: Mapping[str, Any], loss: str) -> Scores:
    """The metrics: each of them fits the loss, and would go on exactly after a resume."""
    scores = Scores(_metrics(settings["metrics"], loss), settings["metric_window"], loss=LOSSES[loss])
    scores.require_resumable()
    return scores


def _metrics(names: list[str], loss: str) -> dict[str, Any]:
    if not names:
        return {}
    try:
        from river import metrics
    except ImportError as error:
        raise ConfigError(f"records.metrics = {names} needs River: {install('river')}") from error
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


def _sinks(settings: Mapping[str, Any], folder: Path) -> list[record.Sink]:
    n = settings["windows"]
    policy: record.Policy = record.Every(settings["every"]) if n is None else record.Windows(n)
    pace = record.Every(n or settings["every"])
    sinks: list[record.Sink] = [
        record.JsonLines(folder / RECORD, policy, FIELDS, append=True),
        record.JsonLines(folder / SPEED, pace, ("step", "seconds", "dropped", "late", "bad"), append=True),
    ]
    if settings["tensorboard"]:
        sinks.append(record.TensorBoard(folder / BOARD, pace, FIELDS))
    return sinks
