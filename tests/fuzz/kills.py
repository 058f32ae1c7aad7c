"""Runs that are killed at random moments and resumed: each ends, to the bit, as one that never was."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hamlearn import record
from hamlearn.experiments.run import CHECKPOINT, RECORD, RESULT, SPEED
from hamlearn.experiments.run import run as run_file
from tests.fuzz.spoil import ViolationError

CONFIG = """
[run]
steps = 300
seed = 3
threads = 1
[stream]
kind = "signals.mackey_glass"
substeps = 2
[network]
kind = "gru"
hidden = 5
[hyper]
eta = 0.5
beta = 0.02
[records]
every = 10
metrics = ["MAE", "RMSE"]
metric_window = 30
[checkpoint]
every = 40
"""
COMPILED = ("[hyper]", '[learner]\nengine = "compiled"\nchunk = 64\n[hyper]')
ENGINES = {"eager": (("", ""), 125), "compiled": (COMPILED, 5000)}
"""By engine: what changes in the file, and steps that one kill may use up."""
LOADED = ["hamlearn.experiments.run", "hamlearn.engine.recorded", "river.metrics", "torch._inductor.config"]


def run(seconds: float = math.inf, seed: int = 0, cases: int | None = None) -> dict[str, int]:
    """Kill and resume until the time, or the number of cases, is over."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end and (cases is None or number < cases):
        draw, engine = random.Random(f"{seed} {number}"), ("eager", "compiled")[number % 2]
        with tempfile.TemporaryDirectory() as folder:
            whole, killed = killed_and_resumed(Path(folder), engine, {"eager": 20, "compiled": 8}[engine], draw)
        if whole != killed:
            raise ViolationError(f"a run that was killed ends elsewhere: {engine}, seed {seed}, case {number}")
        number += 1
    return {"cases": number}


def killed_and_resumed(folder: Path, engine: str, kills: int, draw: random.Random) -> tuple[Any, Any]:
    """What a run leaves behind that nobody disturbs, and what the same run does that is killed so often."""
    change, each = ENGINES[engine]
    config = folder / "config.toml"
    config.write_text(CONFIG.replace("steps = 300", f"steps = {each * (kills + 1)}").replace(*change))
    run_file(config, out=folder / "whole", progress=False)
    # A server that has loaded the library once: each child starts at once, from a process with a single thread.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(LOADED)
    rows = folder / "killed" / RECORD
    for _ in range(kills):
        start = rows.stat().st_size if rows.exists() else 0
        child = server.Process(target=run_file, args=(config, True, folder / "killed", False))
        child.start()
        # By progress, not by the clock: all kills fit into the run on any machine.
        enough = start + draw.randrange(1, 1800)
        while child.is_alive() and (not rows.exists() or rows.stat().st_size < enough):
            time.sleep(0.0002)
        time.sleep(draw.random() * 0.02)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL, "it ended before it could be killed so often"
    run_file(config, resume=True, out=folder / "killed", progress=False)
    return finished(folder / "whole"), finished(folder / "killed")


def finished(folder: Path) -> tuple[Any, ...]:
    """All that must be the same in two runs of one configuration."""
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
        header = json.loads(json.loads(file.metadata()["hamlearn"])["header"])
    # How many bytes the clock's figures take differs from run to run; nothing else may.
    speed = _sinks(header).pop(1)
    assert speed["bytes"] == (folder / SPEED).stat().st_size
    steps = [row["step"] for row in record.read(folder / SPEED)]
    return tensors, header, (folder / RECORD).read_bytes(), (folder / RESULT).read_bytes(), steps


def _sinks(header: dict[str, Any]) -> Any:
    """The states of the sinks, wherever the checkpoint keeps what the stream gave it."""
    if "sinks" in header:
        return header["sinks"]
    return next((found for part in header.values() if isinstance(part, dict) and (found := _sinks(part))), None)
