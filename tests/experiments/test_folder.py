"""Two processes and one folder."""

import multiprocessing
import os
import signal
import time

import pytest

from hamlearn.errors import ConfigError
from hamlearn.experiments.folder import LOCK, alone_in
from hamlearn.experiments.run import run

CONFIG = """
[run]
steps = 40
[stream]
kind = "signals.henon"
[network]
kind = "linear"
"""


def hold(folder, ready):
    with alone_in(folder):
        ready.set()
        time.sleep(60)


@pytest.fixture
def other(tmp_path):
    """Another process that works in the folder `out`."""
    server = multiprocessing.get_context("forkserver")
    ready = server.Event()
    process = server.Process(target=hold, args=(tmp_path / "out", ready))
    process.start()
    assert ready.wait(60)
    yield process
    # Not by the event: setting one whose waiter was killed waits for ever.
    process.kill()
    process.join()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_a_second_run_in_a_folder_is_an_error_and_touches_nothing(tmp_path, config, other):
    (tmp_path / "out" / ".checkpoint.safetensors.abc.tmp").write_bytes(b"in the making")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"out is in use by another process. Wait until it is done"):
            run(config, resume=resume, out=tmp_path / "out", progress=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_killed_run_leaves_no_lock_and_its_half_written_files_are_removed(tmp_path, config, other):
    out = tmp_path / "out"
    for name in (".checkpoint.safetensors.abc.tmp", ".hamlearn-abcdefgh.tmp", ".result.json.1-2.tmp"):
        (out / name).write_bytes(b"half")
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert run(config, resume=True, out=out, progress=False).steps == 40
    assert sorted(path.name for path in out.glob(".*")) == [LOCK]


def test_two_runs_in_one_process_do_not_share_a_folder_either(tmp_path, config):
    with alone_in(tmp_path / "out"), pytest.raises(ConfigError, match="in use by another process"):
        run(config, out=tmp_path / "out", progress=False)
    assert run(config, out=tmp_path / "out", progress=False).steps == 40
