"""The command line: what it prints, what it writes, and its exit codes."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from hamlearn.cli import app

runner = CliRunner()


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_demo_prints_the_table_and_writes_figure_and_curves(tmp_path):
    result = runner.invoke(app, ["demo", "--epochs", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Every difference is within its bound" in plain(result.output)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "differences.csv").open()))
    assert len(rows) == 2 * 4 * 2
    assert all(float(row["max"]) == 0.0 for row in rows if row["role"] == "output")
    curves = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert len(curves) == 2 * 4 * 3 * 2


def test_demo_in_float64_stays_within_its_bound(tmp_path):
    result = runner.invoke(app, ["demo", "--epochs", "1", "--dtype", "float64", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output


def test_demo_exits_with_one_and_says_so_where_a_difference_is_too_large(tmp_path, monkeypatch):
    from hamlearn.experiments import comparison

    wrong = comparison.Hyper.from_sgd
    monkeypatch.setattr(
        comparison, "Hyper", type("Wrong", (), {"from_sgd": staticmethod(lambda **k: wrong(**{**k, "lr": 0.02}))})
    )
    result = runner.invoke(app, ["demo", "--epochs", "1", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "A difference is too large" in plain(result.output)


@pytest.mark.parametrize("name", ["step", "endless", "echo", "credit"])
def test_benchmarks_write_dated_reports_with_machine_and_versions(tmp_path, name):
    result = runner.invoke(app, ["bench", name, "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob(f"*-{name}.json")
    report = json.loads(path.read_text())
    assert report["environment"]["torch"]
    assert report["environment"]["processor"] is not None
    assert report["results"]


@pytest.mark.parametrize(
    "arguments", [["bench", "nothing"], ["demo", "--epochs", "0"], ["demo", "--dtype", "float7"]]
)
def test_what_cannot_be_asked_for_exits_with_two(arguments):
    assert runner.invoke(app, arguments).exit_code == 2


def test_help_teaches_the_commands():
    output = plain(runner.invoke(app, ["--help"]).output)
    assert "demo" in output
    assert "bench" in output
