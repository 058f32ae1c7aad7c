"""Stopped in the middle, `hamlearn reproduce` leaves nothing half-done and goes on without repeating anything."""

import functools
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli import command_line, invoke

pytestmark = pytest.mark.slow

ARGUMENTS = ["--models", "Linear,MLP", "--scenarios", "GD-a,Mom-a", "--epochs", "6", "--dtype", "float32"]
RUNS = 2 * 2 * 3


def start(out, jobs):
    command = command_line("reproduce", *ARGUMENTS, "--jobs", jobs, "--out", out)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    pipe = subprocess.PIPE
    # A session of its own, so that a signal to the group reaches it and its children, as Ctrl-C would; and the
    # signal as a terminal leaves it: a shell that starts the tests in the background has every child ignore it.
    return subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def complete(out):
    """What the command says that runs undisturbed to its end, in this process."""
    done = invoke("reproduce", *ARGUMENTS, "--jobs", "1", "--out", out)
    assert done.exit_code == 0, done.output
    return done.output


def finished(out):
    return {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.safetensors")}


def wait_for(count, out, process):
    deadline = time.monotonic() + 120
    while len(finished(out)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def all_gone(group):
    deadline = time.monotonic() + 20
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not members(group)


def files(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    complete(out)
    return files(out)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for orphans in /proc")


@needs_proc
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_promptly_says_how_to_go_on_and_the_same_command_resumes(tmp_path, undisturbed, jobs):
    process = start(tmp_path, jobs)
    wait_for(2, tmp_path, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues there" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert all_gone(process.pid)
    _resumes(tmp_path, undisturbed)


def test_a_killed_command_resumes(tmp_path, undisturbed):
    process = start(tmp_path, 2)
    wait_for(2, tmp_path, process)
    process.kill()
    # Not communicate(): the processes that train hold its pipes until they are idle.
    assert process.wait(20) == -signal.SIGKILL
    process.stdout.close()
    process.stderr.close()
    time.sleep(3)  # until the runs that were under way are stored
    _resumes(tmp_path, undisturbed)


@needs_proc
def test_a_training_process_that_dies_is_one_clear_message(tmp_path):
    process = start(tmp_path, 2)
    wait_for(2, tmp_path, process)
    children = [pid for pid in members(process.pid) if pid != process.pid and _trains(pid)]
    os.kill(children[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a process that trained ended early" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert all_gone(process.pid)


def _trains(pid):
    return b"popen_loky" in (Path("/proc") / str(pid) / "cmdline").read_bytes()


def _resumes(out, undisturbed):
    before = finished(out)
    assert 2 <= len(before) < RUNS
    assert f"{len(before)} of {RUNS} runs are done already" in complete(out)
    after = finished(out)
    assert len(after) == RUNS
    assert {path: after[path] for path in before} == before
    assert files(out) == undisturbed
