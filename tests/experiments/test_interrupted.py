"""Stopped in the middle, `hamlearn reproduce` ends promptly, with all its processes."""

import functools
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli import command_line

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

ARGUMENTS = ["--models", "RNN", "--scenarios", "GD-a,Mom-a", "--dtype", "float32"]


@pytest.fixture
def command(tmp_path):
    """The command, once its processes train."""
    process = subprocess.Popen(
        command_line("reproduce", *ARGUMENTS, "--jobs", "2", "--out", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A session of its own, so that a signal to the group reaches it and its children, as Ctrl-C would. And the
        # signal as a terminal leaves it: a shell in the background has every child ignore it.
        start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while len(training(process.pid)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(2)
    return process


def members(group):
    """Processes of the group that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def training(group):
    """Those that train: children that have loaded PyTorch."""
    found = []
    for pid in members(group):
        folder = Path("/proc") / str(pid)
        if b"popen_loky" in (folder / "cmdline").read_bytes() and "libtorch" in (folder / "maps").read_text():
            found.append(pid)
    return found


def all_gone(group):
    deadline = time.monotonic() + 20
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not members(group)


def test_ctrl_c_ends_all_processes_with_one_message(command):
    os.killpg(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=20)
    assert command.returncode == 130
    assert "Stopped: nothing was written" in errors
    assert "Traceback" not in errors
    assert all_gone(command.pid)


def test_a_training_process_that_dies_is_one_clear_message(command):
    os.kill(training(command.pid)[0], signal.SIGKILL)
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 2
    assert "a process that trained ended early" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert all_gone(command.pid)
