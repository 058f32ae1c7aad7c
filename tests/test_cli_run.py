"""Papercuts of `hamlearn`: what it waits for, what it overwrites, what it says."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hamlearn
from hamlearn import cli, record
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import CHECKPOINT, RECORD, REPORT, RESULT, reopen, run
from hamlearn.experiments.run.build import build_stream
from hamlearn.experiments.run.command import expected_samples, lines
from hamlearn.experiments.run.config import load
from tests.cli import command_line, invoke

CONFIG = """
[run]
steps = 60
seed = 3
threads = 1
[stream]
kind = "signals.henon"
[network]
kind = "linear"
[records]
every = 5
[checkpoint]
every = 20
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def python(*lines):
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("option", ["--help", "--version", "run --help"])
def test_help_and_version_do_not_wait_for_pytorch(option):
    done = python(
        "import sys",
        f"sys.argv = ['hamlearn', *{option.split()!r}]",
        "from hamlearn.cli import main",
        "try: main()",
        "except SystemExit as end: assert not end.code",
        "print('heavy:', sorted({'torch', 'numpy', 'river', 'matplotlib'} & set(sys.modules)))",
    )
    assert "heavy: []" in done.stdout, done.stderr


def test_every_public_name_is_there_and_the_function_evaluate_goes_before_its_module():
    for name in hamlearn.__all__:
        assert getattr(hamlearn, name) is not None
    assert set(hamlearn.__all__) <= set(dir(hamlearn))
    with pytest.raises(AttributeError, match="has no attribute 'Lerner'"):
        hamlearn.Lerner  # noqa: B018
    done = python(
        "import hamlearn.evaluate",
        "import hamlearn as hl",
        "from hamlearn.evaluate import Evaluation, evaluate",
        "assert hl.evaluate is evaluate",
        "print('ok')",
    )
    assert done.stdout == "ok\n", done.stderr


def test_the_version_is_printed():
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"hamlearn {hamlearn.__version__}\n")


def test_overwrite_puts_a_new_run_in_the_place_of_an_old_one(tmp_path, config):
    out = tmp_path / "out"
    run(config, out=out, progress=False)
    with pytest.raises(ConfigError, match="replace it with --overwrite"):
        run(config, out=out, progress=False)
    config.write_text(CONFIG.replace("steps = 60", "steps = 30").replace("seed = 3", "seed = 4"))
    run(config, out=out, progress=False, overwrite=True)
    run(config, out=tmp_path / "alone", progress=False)
    for name in (RECORD, RESULT, "config.json"):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    with pytest.raises(ConfigError, match="Give one of them"):
        run(config, out=out, resume=True, overwrite=True)
    result = invoke("run", config, "--out", out, "--overwrite", "--no-progress")
    assert result.exit_code == 0, result.output


def test_a_mistake_does_not_cost_the_run_that_was_to_be_overwritten(tmp_path, config):
    out = tmp_path / "out"
    run(config, out=out, progress=False)
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    config.write_text(CONFIG.replace('kind = "signals.henon"', 'kind = "csv"\npath = "none.csv"\nu = "a"'))
    with pytest.raises(ConfigError, match=r"none\.csv"):
        run(config, out=out, progress=False, overwrite=True)
    assert {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()} == before


def test_a_run_that_failed_before_its_first_checkpoint_does_not_block_the_next(tmp_path, config, monkeypatch):
    def fail(self, report):
        if self.step == 17:
            raise KeyboardInterrupt
        original(self, report)

    original = record.Recorder.take
    with monkeypatch.context() as patch:
        patch.setattr(record.Recorder, "take", fail)
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / RECORD).stat().st_size
    run(config, out=tmp_path / "out", progress=False)
    run(config, out=tmp_path / "alone", progress=False)
    assert (tmp_path / "out" / RECORD).read_bytes() == (tmp_path / "alone" / RECORD).read_bytes()


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_signal_saves_what_was_learned_and_the_command_that_is_named_continues_bit_for_bit(
    tmp_path, number, code, engine
):
    folder = tmp_path / "with space"
    folder.mkdir()
    path, out = folder / "config.toml", folder / "out"
    text = CONFIG.replace("every = 20", "every = 100000000") + f'[learner]\nengine = "{engine}"\n'
    path.write_text(text.replace("steps = 60", "steps = 100000000"))
    process = subprocess.Popen(
        command_line("run", path, "--out", out, "--no-progress"),
        stderr=subprocess.PIPE,
        text=True,
        # Started in the background, a shell has it ignore what Ctrl-C sends.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while process.poll() is None and not ((out / RECORD).exists() and (out / RECORD).stat().st_size):
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"hamlearn run '{path}' --out '{out}' --resume" in said
    assert "Traceback" not in said
    steps = len(record.read(out / RECORD)) * 5 + 10
    path.write_text(text.replace("steps = 60", f"steps = {steps}"))
    assert run(path, out=out, progress=False, resume=True).steps == steps
    run(path, out=tmp_path / "whole", progress=False)
    assert (out / RECORD).read_bytes() == (tmp_path / "whole" / RECORD).read_bytes()


def test_a_signal_ends_a_run_that_waits_for_a_live_feed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "config.toml").write_text(
            f'[stream]\nkind = "live"\nsource = "tcp://127.0.0.1:{server.getsockname()[1]}"\npolicy = "block"\n'
            'timeout = 60.0\n[network]\nkind = "linear"\ninputs = 1\noutputs = 1\n[records]\nevery = 1\n'
        )
        command = command_line("run", tmp_path / "config.toml", "--out", tmp_path / "out", "--no-progress")
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        link, _ = server.accept()
        link.sendall(b'{"u": [1.0], "target": [0.5]}\n' * 9)
        while process.poll() is None and len((tmp_path / "out" / RECORD).read_bytes().splitlines()) < 9:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        link.close()
    assert process.returncode == 143, said
    assert reopen(tmp_path / "out").learner.position == 9


@pytest.mark.parametrize("last", [True, False])
def test_the_rows_of_a_csv_file_are_foreseen(tmp_path, last):
    text = "".join(f"{k},{k % 3}\n" for k in range(500))
    (tmp_path / "t.csv").write_text("a,b\n" + (text if last else text[:-1]))
    assert lines(tmp_path / "t.csv") == 501
    assert abs(lines(tmp_path / "t.csv", counted=1000) - 501) < 100
    for extra, expected in (("", 500), ("hold = 3", 1500), ("[run]\nsteps = 70", 70), ("[run]\nsteps = 700", 500)):
        (tmp_path / "c.toml").write_text(f'[stream]\nkind = "csv"\npath = "t.csv"\nu = "a"\ntarget = "b"\n{extra}')
        config = load(tmp_path / "c.toml")
        assert expected_samples(config, build_stream(config)[0]) == expected


def test_the_bar_of_a_csv_file_ends_at_its_end_also_where_rows_are_left_out(tmp_path, config, monkeypatch, capsys):
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{k},{k % 3}\n" for k in range(60)) + "no,number\n")
    config.write_text(
        '[run]\nthreads = 1\n[stream]\nkind = "csv"\npath = "t.csv"\nu = "a"\ntarget = "b"\nbad = "skip"\n'
        'standardize = true\n[network]\nkind = "linear"\n'
    )
    monkeypatch.setenv("COLUMNS", "120")
    run(config, out=tmp_path / "out")
    assert re.search(r"60/60\b", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("library", "extra", "lines"),
    [
        ("river", "river", ["import hamlearn.interop.river"]),
        (
            "sklearn",
            "experiments",
            [
                "from hamlearn.cli import main",
                "sys.argv[1:] = ['reproduce', '--models', 'Linear', '--jobs', '1']",
                "main()",
            ],
        ),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_brings_it(library, extra, lines, tmp_path):
    done = python(
        "import sys, os",
        f"os.chdir({str(tmp_path)!r})",
        f"sys.modules[{library!r}] = None",
        *lines,
    )
    assert done.returncode
    assert f'pip install -c constraints.txt ".[{extra}]"' in done.stderr


def test_every_message_on_a_missing_extra_has_the_command_of_the_readme():
    root = Path(__file__).parents[1]
    assert 'pip install -c constraints.txt ".[' in (root / "README.md").read_text()
    found = [line for path in (root / "src").rglob("*.py") for line in path.read_text().splitlines()]
    assert not [line for line in found if "pip install 'hamlearn" in line or "Install hamlearn[" in line]


def test_river_is_missed_before_the_output_folder_is_made(tmp_path, config, monkeypatch):
    config.write_text(config.read_text().replace("[records]", '[records]\nmetrics = ["MAE"]'))
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(ConfigError, match=r'River: pip install -c constraints\.txt "\.\[river\]"'):
        run(config, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_finished_run_continues_when_its_file_has_grown(tmp_path):
    rows = [f"{k % 7},{k % 5}" for k in range(60)]
    (tmp_path / "config.toml").write_text('[stream]\nkind = "csv"\npath = "table.csv"\ntarget = "y"\n')
    (tmp_path / "table.csv").write_text("\n".join(["x,y", *rows[:40]]) + "\n")
    first = run(tmp_path / "config.toml", out=tmp_path / "out", progress=False)
    (tmp_path / "table.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    again = run(tmp_path / "config.toml", resume=True, out=tmp_path / "out", progress=False)
    whole = run(tmp_path / "config.toml", out=tmp_path / "whole", progress=False)
    assert (first.steps, again.steps, whole.steps) == (40, 60, 60)
    kept = [load_file(folder / CHECKPOINT) for folder in (again.folder, whole.folder)]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[1] if name.startswith("theta/"))


def test_every_extra_that_is_named_exists():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for library, extra in ((name, extra) for extra, names in cli._EXTRAS.items() for name in names.split()):
        section = re.search(rf"^{extra} = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
        assert section is not None
        assert library.replace("sklearn", "scikit-learn").replace("_", "-") in section[1]


def test_the_report_of_a_run_names_versions_and_date(tmp_path, config):
    run(config, out=tmp_path / "out", progress=False)
    page = (tmp_path / "out" / REPORT).read_text()
    assert re.search(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d UTC · hamlearn {hamlearn.__version__}, PyTorch \d", page)
