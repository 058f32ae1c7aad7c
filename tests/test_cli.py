"""The command line: what it prints, what it writes, and its exit codes."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hamlearn.cli import main
from hamlearn.errors import ConfigError
from tests.cli import command_line, invoke


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "step",
        "endless",
        "echo",
        "credit",
        "fair",
        "overhead",
        "river",
        "streams",
        "bundled",
        "defaults",
        "agents",
        "plasticity",
    ],
)
def test_benchmarks_write_dated_reports_with_machine_and_versions(tmp_path, name):
    result = invoke("bench", name, "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob(f"*-{name}.json")
    report = json.loads(path.read_text())
    assert report["environment"]["torch"]
    assert report["environment"]["processor"] is not None
    assert report["results"]


def test_a_device_is_taken_by_the_benchmarks_that_know_it_and_refused_by_the_others(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("benchmarks.stream.run", lambda out, **given: seen.append(given))
    assert invoke("bench", "stream", "--device", "cuda", "--out", tmp_path).exit_code == 0
    assert invoke("bench", "stream", "--out", tmp_path).exit_code == 0
    assert seen == [{"quick": False, "device": "cuda"}, {"quick": False}]
    for name, device, why in (("step", "cuda", "is not for step"), ("stream", "tpu", "give cpu or cuda")):
        result = invoke("bench", name, "--device", device)
        assert result.exit_code != 0
        assert why in f"{result.output}{result.exception}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["credit", "--task", "nothing"], "--task 'nothing' is not known: give one of mackey-glass"),
        (["credit", "--rule", "nothing"], "--rule 'nothing' is not known: give one of frozen"),
        (["step", "--task", "henon"], "--task henon: the benchmark 'step' has no options of its own"),
        (["nothing"], "the benchmark 'nothing' is not known: give one of step, stream"),
        (["credit", "--seeds", "0"], "--seeds 0 leaves nothing to take a mean of: give at least 1"),
        (["credit", "--rate", "0"], "--rate 0.0: give rates above 0"),
        (
            ["credit", "--quick", "--task", "henon", "--rule", "rflo", "--braintrace", "/nowhere/python"],
            "could not be started",
        ),
    ],
)
def test_options_of_the_credit_benchmark_that_cannot_be_met_are_named(tmp_path, arguments, message):
    result = invoke("bench", *arguments, "--out", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


RUN = """
[run]
steps = 2000
seed = 3
threads = 1
[stream]
kind = "signals.mackey_glass"
[network]
kind = "gru"
hidden = 5
[hyper]
eta = 0.5
beta = 0.02
[records]
every = 10
metrics = ["MAE"]
[checkpoint]
every = 50
"""


def test_a_benchmark_whose_library_is_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "benchmarks.endless", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    result = invoke("bench", "endless", "--quick", "--out", tmp_path)
    assert "needs psutil: pip install" in str(result.exception)


def test_without_the_sources_the_command_says_where_the_benchmarks_are(tmp_path, monkeypatch):
    monkeypatch.setattr("hamlearn.cli.measuring.__file__", str(tmp_path / "hamlearn" / "cli" / "measuring.py"))
    result = invoke("bench", "step", "--quick", "--out", tmp_path)
    assert "not part of the installed package: clone the sources" in str(result.exception)


def test_a_report_of_a_folder_without_a_run_is_refused(tmp_path):
    result = invoke("report", tmp_path)
    assert "hamlearn run wrote" in str(result.exception)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `hamlearn` in this process; answers its exit code and what it said."""

    def command(*arguments, size=None, unprivileged=False):
        monkeypatch.setattr(sys, "argv", ["hamlearn", *map(str, arguments)])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        user = os.geteuid()
        try:
            if size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            if unprivileged and user == 0:
                # Root may write everywhere.
                os.seteuid(65534)
            with pytest.raises(SystemExit) as caught:
                main()
        finally:
            os.seteuid(user)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return caught.value.code, " ".join(f"{said.out} {said.err}".split())

    return command


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(RUN.replace("steps = 2000", "steps = 60").replace("every = 10", "every = 1"))
    return path


def test_a_mistake_in_a_configuration_or_a_file_in_place_of_a_folder_is_one_message_and_exit_code_two(
    tmp_path, config, command
):
    code, message = command("run", config, "--out", config)
    assert (code, "config.toml is a file, not a folder" in message) == (2, True)
    config.write_text(RUN.replace("beta = 0.02", "bete = 0.02"))
    code, message = command("run", config, "--out", tmp_path / "out")
    assert (code, "bete" in message) == (2, True)


@pytest.mark.parametrize(("size", "file"), [(100, "config.json"), (1500, "record.jsonl"), (5000, "record.jsonl")])
def test_a_disk_that_is_full_is_one_message_and_exit_code_two_and_the_run_continues_later(
    tmp_path, config, command, size, file
):
    config.write_text(config.read_text().replace("every = 50", "every = 1000"))
    run = ["run", config, "--resume", "--out", tmp_path / "out", "--no-progress"]
    code, message = command(*run, size=size)
    assert code == 2
    assert re.search(rf"hamlearn: .*{file}.*(Raise the limit|the free space on the disk)", message), message
    assert not list((tmp_path / "out").glob(".*.tmp"))
    assert command(*run)[0] == 0
    assert command("run", config, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    for name in ("record.jsonl", "result.json", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_one_message_and_exit_code_two(tmp_path, config, command):
    config.write_text(config.read_text().replace("hidden = 5", "hidden = 64"))
    code, message = command("run", config, "--out", tmp_path / "out", "--no-progress", size=30_000)
    assert code == 2
    assert "checkpoint.safetensors" in message
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_a_folder_that_may_not_be_written_to_is_one_message_and_exit_code_two(tmp_path, config, command):
    assert command("run", config, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    (tmp_path / "out").mkdir(mode=0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(0o755)
    code, message = command("run", config, "--out", tmp_path / "out", "--no-progress", unprivileged=True)
    assert code == 2
    assert "Permission denied" in message
    assert "Give a folder that you may write to, by --out" in message
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_one_message_and_exit_code_two(tmp_path, config):
    command = command_line("run", config, "--out", tmp_path / "out", "--no-progress")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
