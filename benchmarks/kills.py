"""Whether an agent that is killed under load, again and again, learns each message of its broker once."""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import _report
from benchmarks._brokers import PATIENCE, Broker, Publisher, mosquitto, program, redis_server
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import CHECKPOINT, RECORD
from hamlearn.experiments.run import run as run_config
from hamlearn.state import checkpoint

EVERY = 25
"""Samples from checkpoint to checkpoint, where the broker does not ask for more of them."""


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Kill twenty times, for each broker and each engine, and write a dated report."""
    missing = [name for name in ("mosquitto", "redis-server") if program(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: apt-get install mosquitto redis-server")
    kills = 3 if quick else 20
    found: dict[str, Any] = {"kills": kills}
    for kind in ("mqtt", "redis"):
        for engine in ("eager", "compiled"):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{kind}, {engine}"] = killed(kind, Path(folder), kills, engine=engine)
            Console().print(f"{kind}, {engine}: {found[f'{kind}, {engine}']}")
    _report.write(out, "kills", found)
    return found


def killed(
    kind: str, folder: Path, kills: int, seed: int = 0, engine: str = "eager", share: int = 150
) -> dict[str, Any]:
    """Run one agent undisturbed and one that is killed so often on the same messages, and compare all they left.

    Args:
        kind: `"mqtt"` or `"redis"`.
        folder: For the broker and both agents.
        kills: SIGKILLs, each at a random moment after the agent has saved something in that life.
        seed: Of messages and moments.
        engine: Of the learners.
        share: Messages in each life.
    """
    draw = random.Random(seed)
    messages = list(stream(draw, share * (kills + 1)))
    good = sum(isinstance(message, dict) for message in messages)
    with broker(kind, folder) as server:
        undisturbed = folder / "undisturbed"
        config = write(kind, server.port, "undisturbed", folder, good, engine)
        sender = Publisher(kind, server.port, "undisturbed")
        thread = threading.Thread(target=lambda: run_config(config, out=undisturbed, progress=False))
        if kind == "mqtt":
            # A broker keeps what is published from the first subscription on.
            subscribe(server.port, "undisturbed")
        thread.start()
        sender.send(messages)
        thread.join()
        sender.close()
        disturbed = folder / "disturbed"
        config = write(kind, server.port, "disturbed", folder, good, engine)
        if kind == "mqtt":
            subscribe(server.port, "disturbed")
        saved = lives(kind, server, config, disturbed, messages, kills, share, draw)
    return compared(undisturbed, disturbed) | {"messages": len(messages), "saved when killed": saved}


def lives(
    kind: str,
    server: Broker,
    config: Path,
    out: Path,
    messages: list[Any],
    kills: int,
    share: int,
    draw: random.Random,
) -> list[int]:
    """Live and be killed so often, and then to the end; tells the position of the checkpoint at each kill."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.kills"])
    sender = Publisher(kind, server.port, "disturbed")
    saved = []
    for life in range(kills + 1):
        part = messages[life * share : (life + 1) * share]
        agent = context.Process(target=live, args=(str(config), str(out)))
        agent.start()
        load = threading.Thread(target=sender.send, args=(part, 0.0005))
        load.start()
        if life < kills:
            before = _stamp(out / CHECKPOINT)
            _until(lambda before=before, agent=agent: _stamp(out / CHECKPOINT) != before or not agent.is_alive())
            time.sleep(draw.random() * 0.3)
            agent.kill()
            agent.join()
            saved.append(_position(out / CHECKPOINT))
        else:
            agent.join(4 * PATIENCE)
            # Should messages have been lost, it waits for them in vain.
            agent.kill()
            assert agent.exitcode == 0, f"the last life ended with {agent.exitcode}"
        load.join()
    sender.close()
    return saved


def live(config: str, out: str) -> None:
    """One life of an agent."""
    torch.set_num_threads(1)
    run_config(config, resume=True, out=out, progress=False)


def stream(draw: random.Random, count: int) -> Iterator[Any]:
    """Messages with times and ids, some of them bad, some labelled later."""
    t = 0.0
    for k in range(count):
        t += draw.choice((0.5, 1.0, 1.5))
        if k % 17 == 5:
            yield draw.choice((b'{"u": [1, "two"]}', b"\xff", b'{"u": [NaN, 1]}', b"[]"))
            continue
        if k % 11 == 7:
            yield {"id": k - 1 if (k - 1) % 17 != 5 else k - 2, "target": [draw.gauss(0, 1)]}
            continue
        message: dict[str, Any] = {"u": [draw.gauss(0, 1), draw.gauss(0, 1)], "t": t, "id": k}
        if k % 11 not in (5, 6):
            message["target"] = [draw.gauss(0, 1)]
        yield message


def compared(undisturbed: Path, disturbed: Path) -> dict[str, Any]:
    """The results of two runs: weights, costates and counts bit-for-bit, and every row of their records."""
    (ours, about), (theirs, others) = (checkpoint.read(path / CHECKPOINT) for path in (undisturbed, disturbed))
    places = [_cursor(header) for header in (about, others)]
    return {
        "tensors equal": set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours),
        "records equal": (undisturbed / RECORD).read_bytes() == (disturbed / RECORD).read_bytes(),
        "taken": [place["taken"] for place in places],
        "ids equal": places[0]["ids"] == places[1]["ids"],
    }


def write(kind: str, port: int, topic: str, folder: Path, steps: int, engine: str) -> Path:
    """The configuration of an agent."""
    own = f'address = "mqtt://127.0.0.1:{port}/{topic}"\nclient = "{topic}"'
    if kind == "redis":
        own = f'address = "redis://127.0.0.1:{port}/{topic}"\ngroup = "agent"'
    path = folder / f"{topic}.toml"
    # The statistics of a compiled run are resumed from the beginning of a block, and lack its samples.
    standardize = "true" if engine == "eager" else "false"
    path.write_text(
        f'[run]\nsteps = {steps}\nthreads = 1\n[stream]\nkind = "{kind}"\n{own}\npolicy = "block"\nbad = "skip"\n'
        f'standardize = {standardize}\n[network]\nkind = "mlp"\nhidden = 8\ninputs = 2\noutputs = 1\n'
        f'[hyper]\nlr = 0.005\nmomentum = 0.5\n[learner]\nengine = "{engine}"\nchunk = 16\n'
        f"[records]\nevery = 20\nreport = false\n[checkpoint]\nevery = {EVERY}\n"
    )
    return path


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[Broker]:
    """A broker of that kind."""
    with (mosquitto if kind == "mqtt" else redis_server)(folder) as server:
        yield server


def subscribe(port: int, topic: str) -> None:
    """Begin the session of an agent that is not there yet."""
    from hamlearn.streams import live as feed
    from hamlearn.streams import mqtt

    source = mqtt(f"mqtt://127.0.0.1:{port}/{topic}", client=topic)
    with feed(source) as opened:
        threading.Thread(target=lambda: next(iter(opened), None), daemon=True).start()
        _until(lambda: source.subscribed)


def _cursor(header: dict[str, Any]) -> dict[str, Any]:
    state = header["reader"]["stream"]
    while "inner" in state["cursor"]:
        (state,) = state["cursor"]["inner"]
    return state["cursor"]


def _position(path: Path) -> int:
    return int(checkpoint.read(path)[1]["reader"]["position"]) if path.exists() else 0


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _until(condition: Any) -> None:
    # A compiled engine records its step again in each life, which takes its time on a busy machine.
    end = time.monotonic() + 4 * PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


if __name__ == "__main__":
    print(json.dumps(run(Path("benchmarks/results")), indent=1))
