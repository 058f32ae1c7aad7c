"""Two processes and one folder."""

import multiprocessing
import os
import re
import signal
import time

import pytest
from filelock import FileLock

from hamlearn.errors import ConfigError
from hamlearn.experiments.folder import LOCK, OWNER, alone_in
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


def test_a_second_run_in_a_folder_is_refused_with_the_process_that_has_it_and_touches_nothing(
    tmp_path, config, other
):
    (tmp_path / "out" / ".checkpoint.safetensors.abc.tmp").write_bytes(b"in the making")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    message = rf"out is in use by process {other.pid} on .*Wait until it is done"
    for resume in (False, True):
        with pytest.raises(ConfigError, match=message):
            run(config, resume=resume, out=tmp_path / "out", progress=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_killed_run_leaves_no_lock_and_its_half_written_files_are_cleared_away(tmp_path, config, other):
    out = tmp_path / "out"
    for name in (".checkpoint.safetensors.abc.tmp", ".hamlearn-abcdefgh.tmp", ".result.json.1-2.tmp"):
        (out / name).write_bytes(b"half")
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert run(config, resume=True, out=out, progress=False).steps == 40
    assert sorted(path.name for path in out.glob(".*")) == [LOCK]


def test_two_runs_in_one_process_do_not_share_a_folder_either(tmp_path, config):
    with alone_in(tmp_path / "out"), pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
        run(config, out=tmp_path / "out", progress=False)
    assert run(config, out=tmp_path / "out", progress=False).steps == 40


def test_a_process_that_has_not_said_its_name_yet_is_refused_all_the_same(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / LOCK), pytest.raises(ConfigError, match="in use by another process"), alone_in(out):
        pass
    with alone_in(out):
        assert re.match(rf"process {os.getpid()} on ", (out / OWNER).read_text())
