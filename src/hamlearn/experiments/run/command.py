"""`hamlearn run CONFIG.toml`: from a file to a folder of results."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hamlearn import record
from hamlearn.errors import ConfigError, StreamError
from hamlearn.evaluate import scored
from hamlearn.experiments.folder import alone_in
from hamlearn.experiments.run.config import Config, load
from hamlearn.experiments.run.folder import (
    BOARD,
    CHECKPOINT,
    RECORD,
    RESUMED,
    SPEED,
    finish,
    prepare,
    require_free,
)
from hamlearn.experiments.run.metrics import Exporter
from hamlearn.experiments.run.opened import Opened, build, torch_as
from hamlearn.experiments.run.result import Result
from hamlearn.learner.learner import carry_along
from hamlearn.streams import Stream

FIELDS = ("step", "t", "loss", "hamiltonian", "h", "z", "omega", "theta")
"""Of the record: nothing that depends on the clock, so that two runs of one configuration write the same file."""
PAYS = 10_000
"""Samples from which on the time to compile a step, one to two seconds, is won back."""
DRAIN = 10.0
"""Seconds that a run may continue to learn what has arrived, after a signal to stop."""
COUNTED = 64 << 20
"""Bytes of a table whose lines are counted; the length of a longer one is estimated by its size."""


def run(
    path: str | Path,
    resume: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
    overwrite: bool = False,
    metrics_port: int | None = None,
) -> Result:
    """Run a configuration to its end, or until SIGINT or SIGTERM, which save what was learned.

    Args:
        path: The TOML file; paths in it are relative to its folder.
        resume: Continue from the last checkpoint in the output folder, or from the start if there is none. The
            result is, bit-for-bit, that of a run that was never stopped.
        out: The output folder, instead of `run.out`; relative to the working folder.
        progress: Whether to draw a progress bar.
        overwrite: Start again in a folder that has a run already, once the stream and the learner are built; the
            files of the other run are removed then.
        metrics_port: Port of this machine at which Prometheus finds `/metrics` during the run.

    Raises:
        ConfigError: For a mistake in the file, a folder that has a run already while neither `resume` nor
            `overwrite` is set, or a folder in which another process works.
    """
    if resume and overwrite:
        raise ConfigError("resume continues a run, overwrite removes it. Give one of them.")
    path = Path(path)
    config = load(path)
    folder = Path(config["run"]["out"] if out is None else out)
    with torch_as(config["run"]):
        opened = build(config)
        if config["run"]["steps"] is None and opened.stream.length == math.inf:
            raise ConfigError("run.steps is missing, and the stream is endless. Give a whole number above 0.")
        with alone_in(folder):
            if not overwrite:
                require_free(folder, config, resume)
            prepare(folder, config, overwrite)
            result = _learn(opened, folder, progress, metrics_port)
            if not result.signal:
                finish(config, result)
            return result


def _learn(opened: Opened, folder: Path, progress: bool, port: int | None) -> Result:
    """Learn from the stream, recording and saving on the way."""
    config, learner, stream = opened.config, opened.learner, opened.stream
    resumed = (folder / CHECKPOINT).exists()
    if resumed:
        learner.load(folder / CHECKPOINT)
        with (folder / RESUMED).open("a") as file:
            file.write(json.dumps({"step": learner.position}) + "\n")
    total, steps = expected_samples(config, stream), config["run"]["steps"]
    bar = record.Progress(total) if progress else None
    others = [None if port is None else Exporter(port, folder / CHECKPOINT), bar]
    sinks = [*_sinks(opened, folder), *(sink for sink in others if sink is not None)]
    left = None if steps is None else max(steps - learner.position, 0)
    # A broker that waits for a checkpoint must not wait for ever.
    every = min(config["checkpoint"]["every"], stream.save_within or config["checkpoint"]["every"])
    with ExitStack() as stack:
        recorder = stack.enter_context(record.Recorder(learner, *sinks, stream=stream))
        carry_along(learner, {"records": recorder, "scores": opened.scores})
        stack.callback(getattr(stream, "close", int))
        stopped = stack.enter_context(_stoppable(stream))
        engine, chunk = _engine(config, total), config["learner"]["chunk"]
        reports = learner.run(stream, left, engine, chunk, resume=resumed)
        try:
            for _ in recorder(scored(reports, opened.scores)):
                if recorder.step % every == 0:
                    learner.save(folder / CHECKPOINT)
                if stopped and not (stream.live and time.monotonic() < stopped[1]):
                    break
        except StreamError:
            # A feed that was stopped may end within a sequence.
            if not stopped:
                raise
        learner.save(folder / CHECKPOINT)
        if bar is not None and not stopped:
            bar.finish()
    counts, number = learner.labels._asdict(), int(stopped[0]) if stopped else None
    return Result(
        folder,
        recorder.step,
        number,
        **opened.scores.summary(),
        window_size=opened.scores.window,
        labels=counts if any(counts.values()) else None,
        skipped=left_out(stream),
    )


def _engine(config: Config, total: int | None) -> Any:
    """The engine that the file asks for; of a table, the learner does not know how short it is."""
    asked = config["learner"]["engine"]
    return "eager" if asked == "auto" and total is not None and total < PAYS else asked


@contextmanager
def _stoppable(stream: Stream) -> Iterator[list[float]]:
    """Collect SIGINT and SIGTERM, for a run to end after the current sample; a second signal ends it at once.

    Samples that have arrived from a live feed that cannot send them again are learned first. Yields the number of
    the signal, and the time until which that may continue.
    """
    stopped: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.extend((number, time.monotonic() + DRAIN))
        if stream.live:
            # A feed may be waiting for a sample that never comes.
            stream.finish()  # type: ignore[attr-defined]

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def expected_samples(config: Config, stream: Stream) -> int | None:
    """Samples that the run takes in all; `None` if that cannot be seen before it.

    The rows of a CSV file are counted by their lines: a row that is left out makes it a few too many.
    """
    length = stream.length
    if length is None and config["stream"]["kind"] == "csv":
        length = max(0, lines(Path(config["stream"]["path"])) - 1) * config["stream"].get("hold", 1)
    known = [n for n in (config["run"]["steps"], length) if n is not None and n != math.inf]
    return int(min(known)) if known else None


def left_out(stream: Any) -> int:
    """Rows that a stream, or one that it is made of, has left out."""
    return sum(getattr(one, "skipped", 0) for one in _inner(stream))


def _inner(stream: Any) -> Iterator[Any]:
    """A stream and all that it is made of."""
    while stream is not None:
        yield stream
        stream = getattr(stream, "inner", None)


def lines(path: Path, counted: int = COUNTED) -> int:
    """Lines of a file; beyond `counted` bytes estimated by their mean length."""
    with path.open("rb") as file:
        data = file.read(counted)
    found = data.count(b"\n") + (not data.endswith(b"\n"))
    return round(found * path.stat().st_size / len(data)) if data else 0


def _sinks(opened: Opened, folder: Path) -> list[record.Sink]:
    """Sinks of the records that are written into the folder during the run."""
    settings = opened.config["records"]
    every = settings["every"]
    sinks: list[record.Sink] = [
        record.JsonLines(folder / RECORD, every, FIELDS, append=True),
        record.JsonLines(folder / SPEED, every, ("step", "seconds", "dropped", "late", "bad"), append=True),
    ]
    if settings["predictions"] != "none":
        tables = (one for one in _inner(opened.stream) if hasattr(one, "classes"))
        table = None if opened.classes is None else next(tables, None)
        names = None if table is None else lambda: table.classes
        sinks.append(record.Predictions(folder / f"predictions.{settings['predictions']}", names, append=True))
    if settings["tensorboard"]:
        sinks.append(record.TensorBoard(folder / BOARD, every, FIELDS))
    return sinks
