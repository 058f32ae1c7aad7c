"""`hamlearn bench serve`: requests a second, waiting times, processor time and memory of a served learner.

A real server, in a process of its own, over loopback with keep-alive; the client is another process.
`python -m benchmarks.serve --requests 500000` runs the test of memory at full length.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import ROOT, _report
from hamlearn.serve.forms import JSON

CONFIG = """
[network]
kind = "mlp"
inputs = 32
hidden = 64
outputs = 1

[hyper]
lr = 0.001

[serve]
port = 0
"""
BATCH, AGENTS = 64, 200
REACH = {"single": 1500.0, "batch": 40_000.0, "p99": 0.050}
"""Requests a second, samples a second, seconds at half of these."""


@contextmanager
def server(folder: Path, more: str = "") -> Iterator[tuple[psutil.Process, int]]:
    """A server as a user would start it; its process and its port."""
    config = folder / "serve.toml"
    config.write_text(CONFIG + more)
    start = "from hamlearn.cli import main; main()"
    command = [sys.executable, "-c", start, "serve", str(config), "--out", str(folder / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield psutil.Process(process.pid), int(line.partition("127.0.0.1:")[2].partition(",")[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def bodies() -> dict[str, tuple[bytes, str, int]]:
    """What is sent: body, content type, and how many samples are in it."""
    draw = np.random.default_rng(0)
    u, target = draw.standard_normal((BATCH, 32), np.float32), draw.standard_normal((BATCH, 1), np.float32)
    one = {"u": u[0].round(4).tolist(), "target": target[0].round(4).tolist()}
    rows = zip(u.round(4).tolist(), target.round(4).tolist(), strict=True)
    many = [{"u": x, "target": y} for x, y in rows]
    return {
        "single, JSON": (json.dumps(one).encode(), JSON, 1),
        "batch of 64, JSON": (json.dumps(many).encode(), JSON, BATCH),
    }


def load(
    process: psutil.Process, port: int, body: bytes, kind: str, paths: Sequence[str] = ("/predict",), **job: Any
) -> dict[str, Any]:
    """Let the client send, and add the processor time that the server took for a request."""
    before = process.cpu_times()
    text = json.dumps({"port": port, "body": body.hex(), "type": kind, "paths": paths, **job})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._serve_load"],
        cwd=ROOT,
        input=text + "\n",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    after, found = process.cpu_times(), json.loads(done.stdout)
    found["cpu"] = (after.user + after.system - before.user - before.system) / found["requests"]
    return {**found, "rate": found["requests"] / found["seconds"]}


def many(folder: Path, agents: int, number: int) -> dict[str, Any]:
    """Single requests to many agents in turn, at full load and at half of it; how long it takes to make one."""
    body, kind, _ = bodies()["single, JSON"]
    paths = [f"/predict?agent=a{index}" for index in range(agents)]
    with server(folder, f"agents = {agents + 1}\ncheckpoint = 60.0\n") as (process, port):
        made = load(process, port, body, kind, paths, requests=agents, links=1, rate=None)
        load(process, port, body, kind, paths, requests=2 * agents, links=32, rate=None)
        fast = load(process, port, body, kind, paths, requests=number, links=32, rate=None)
        half = fast["rate"] / 2
        paced = load(process, port, body, kind, paths, requests=int(half * 5), links=32, rate=half)
    return {"samples": 1, "full": fast, "half": paced, "seconds_to_make_one": made["seconds"] / agents}


def memory(process: psutil.Process, port: int, body: bytes, kind: str, requests: int) -> dict[str, Any]:
    """Resident memory while many requests are served, and its slope over the second half, by least squares."""
    sizes: list[tuple[float, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.25):
            sizes.append((time.perf_counter(), process.memory_info().rss))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        found = load(process, port, body, kind, requests=requests, links=32, rate=None)
    finally:
        stop.set()
        thread.join()
    late = np.array(sizes[len(sizes) // 2 :])
    slope = float(np.polyfit(late[:, 0] - late[0, 0], late[:, 1], 1)[0]) if len(late) > 2 else 0.0
    return {
        "requests": requests,
        "rate": found["rate"],
        "bad": found["bad"],
        "bytes_half_way": int(late[0, 1]),
        "bytes_at_the_end": int(late[-1, 1]),
        "bytes_a_request": slope / found["rate"],
    }


def run(out: Path, quick: bool = False, requests: int = 100_000) -> Path:
    """Measure, print a table, and write a dated report."""
    requests = 3000 if quick else requests
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (process, port):
        for name, (body, kind, count) in bodies().items():
            number = (200 if quick else 10_000) // (1 if count == 1 else 4)
            load(process, port, body, kind, requests=number // 5 + 50, links=32, rate=None)
            fast = load(process, port, body, kind, requests=number, links=32, rate=None)
            half = REACH["single"] / 2 if count == 1 else REACH["batch"] / 2 / count
            paced = load(process, port, body, kind, requests=int(half * (1 if quick else 10)), links=32, rate=half)
            rows[name] = {"samples": count, "full": fast, "half": paced}
        body, kind, _ = bodies()["single, JSON"]
        flat = memory(process, port, body, kind, requests)
    agents = 3 if quick else AGENTS
    with tempfile.TemporaryDirectory() as folder:
        rows[f"single, JSON, {agents} agents"] = many(Path(folder), agents, 200 if quick else 5000)
    _show(rows, flat)
    return _report.write(out, "serve", {"rows": rows, "memory": flat, "reach": REACH})


def _show(rows: dict[str, Any], flat: dict[str, Any]) -> None:
    heads = ("request", "requests/s", "samples/s", "CPU µs/request", "half load/s", "p50 ms", "p99 ms")
    table = Table(*heads, title="Predict and learn, an MLP of 32 inputs")
    for name, row in rows.items():
        full, half = row["full"], row["half"]
        table.add_row(
            name,
            f"{full['rate']:,.0f}",
            f"{full['rate'] * row['samples']:,.0f}",
            f"{full['cpu'] * 1e6:,.0f}",
            f"{half['rate']:,.0f}",
            f"{half['p50'] * 1e3:.1f}",
            f"{half['p99'] * 1e3:.1f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"memory over {flat['requests']:,} requests: {flat['bytes_half_way'] / 1e6:.1f} MB half way, "
        f"{flat['bytes_at_the_end'] / 1e6:.1f} MB at the end, {flat['bytes_a_request']:+.2f} bytes a request"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="of the test of memory")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    run(given.out, given.quick, given.requests)
