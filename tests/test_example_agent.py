"""The example of an agent in production, as a user starts and stops it."""

import http.client
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks._brokers import free_port, program
from hamlearn import record

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "agent" / "agent.py"
PATIENCE = 180.0


def command(what, folder, *options):
    command = [sys.executable, SCRIPT, what, "--out", folder, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def until(condition, folder):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            pytest.fail("\n".join(f"{path.name}: {path.read_text()}" for path in folder.glob("*.log")))
        time.sleep(0.1)


def data(port):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.request("GET", "/data")
    found = json.loads(link.getresponse().read())
    link.close()
    return found


@pytest.mark.skipif(program("mosquitto") is None, reason="no mosquitto on this machine")
def test_the_agent_starts_learns_from_late_labels_shows_it_and_stops(tmp_path):
    spec = importlib.util.spec_from_file_location("agent", SCRIPT)
    agent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agent)
    broker, page = free_port(), free_port()
    started = command("start", tmp_path, "--broker", broker, "--page", page)
    try:
        assert started.returncode == 0, started.stderr
        assert f"http://127.0.0.1:{page}/" in started.stdout
        records = tmp_path / "run" / "record.jsonl"
        until(lambda: records.exists() and len(record.read(records)) > 15, tmp_path)
        assert any(row["loss"] is not None for row in record.read(records))
        until(lambda: (tmp_path / "run" / "checkpoint.safetensors").exists(), tmp_path)
        shown = data(page)
        assert shown["status"] == "learning"
        assert any("loss" in row for row in shown["rows"])
        pids = {path.stem: int(path.read_text()) for path in tmp_path.glob("*.pid")}
        assert set(pids) == {"broker", "agent", "sensor", "page"}
    finally:
        stopped = command("stop", tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert not list(tmp_path.glob("*.pid"))
    assert [name for name, pid in pids.items() if agent.lives(pid)] == []
