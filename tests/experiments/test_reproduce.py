"""`hamlearn reproduce`: what it runs, what it writes, and what makes it fail."""

import csv
import math
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from hamlearn.errors import ConfigError
from hamlearn.experiments import comparison
from hamlearn.experiments.comparison import Difference
from hamlearn.experiments.data import load
from hamlearn.experiments.folder import LOCK
from hamlearn.experiments.models import MODELS
from hamlearn.experiments.reproduce import Settings, reproduce, results
from hamlearn.experiments.reproduce.command import train
from hamlearn.experiments.reproduce.plan import plan
from hamlearn.experiments.scenarios import SCENARIOS
from tests.cli import invoke, plain

pytestmark = pytest.mark.slow

QUICK = ["--models", "Linear", "--epochs", "1", "--jobs", "1"]


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def silent():
    return Console(quiet=True)


def planned(**kwargs):
    return list(plan(Settings(**kwargs)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All models and scenarios of the paper, one epoch of the embedded data."""
    out = tmp_path_factory.mktemp("whole")
    result = invoke("reproduce", "--epochs", "1", "--jobs", "1", "--out", out)
    assert result.exit_code == 0, result.output
    return out, plain(result.output)


def test_every_model_scenario_and_implementation_is_in_the_table(whole):
    rows = table(whole[0] / "table.csv")
    cells = {(row["model"], row["scenario"], row["implementation"]) for row in rows if row["dtype"] == "float32"}
    assert cells == {(m.name, s, how) for m in MODELS.values() for s in SCENARIOS for how in m.implementations}
    second = {(row["model"], row["implementation"]) for row in rows if row["dtype"] == "float64"}
    assert second == {(m.name, how) for m in MODELS.values() for how in m.implementations[1:]}


def test_output_nets_differ_by_exactly_nothing_in_all_24_cells_in_float32(whole):
    rows = [
        row
        for row in table(whole[0] / "table.csv")
        if (row["implementation"], row["dtype"]) == ("output", "float32")
    ]
    assert len(rows) == 24
    assert {(row["bound"], row["max"]) for row in rows} == {("0.0", "0.0")}


def test_state_nets_stay_within_their_bound_in_float64(whole):
    rows = [row for row in table(whole[0] / "table.csv") if row["dtype"] == "float64"]
    assert {row["bound"] for row in rows} == {"1e-10"}
    assert all(float(row["max"]) <= 1e-10 for row in rows)


def test_the_console_shows_every_table_within_80_columns_and_says_what_was_reduced(whole):
    text = whole[1]
    assert "REDUCED epochs: Iris 1 (paper: 40), MNIST" in text
    assert "embedded stand-ins for MNIST and IMDb" in text
    assert "made-up short reviews" in text
    assert text.count("✓") == 56 + 32
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"All \d+ cells passed", text)


def test_curves_hold_the_means_of_every_epoch(whole):
    rows = [row for row in table(whole[0] / "curves.csv") if row["dtype"] == "float32"]
    assert len(rows) == 6 * 4 * 3 + 2 * 4
    (job,) = [job for job in planned(epochs=1) if job.cell == ("MLP", "GD-b", "SGD", "float32")]
    _, run = train(job)
    (row,) = [row for row in rows if (row["model"], row["scenario"], row["implementation"]) == job.cell[:3]]
    assert len(run.loss) == 150
    assert float(row["loss"]) == run.loss.double().mean().item()
    assert float(row["accuracy"]) == run.correct.double().mean().item()


def test_the_report_shows_tables_settings_data_and_figures_fetches_nothing_and_tells_no_time(whole):
    text = (whole[0] / "report.html").read_text()
    assert text.count("✓") == 56 + 32
    assert "REDUCED epochs: Iris 1 (paper: 40)" in text
    assert "Mom-b: lr 0.01, momentum 0.1, dampening 0.5, τ 0.5" in text
    assert "Data: Iris: Iris, 150 samples, from scikit-learn; 150 samples" in text
    assert text.count('src="data:image/png') == text.count("src=") == 2
    assert "http" not in text
    for name in ("loss.png", "accuracy.png"):
        assert (whole[0] / name).read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"\d\d:\d\d", re.sub(r"base64,[^\"]+", "", text))


def test_two_runs_with_one_seed_give_identical_files_whatever_the_number_of_processes(tmp_path):
    settings = Settings(models=("Linear", "LSTM"), scenarios=("Mom-a",), epochs=1)
    for name, processes in (("one", 1), ("other", 2)):
        assert reproduce(settings, tmp_path / name, processes, silent())
    one, other = tree(tmp_path / "one"), tree(tmp_path / "other")
    assert len(one) == 5 + len([LOCK])
    assert one == other


def test_another_seed_gives_other_curves(tmp_path):
    for seed in (0, 1):
        settings = Settings(models=("Linear",), epochs=1, seed=seed)
        reproduce(settings, tmp_path / str(seed), console=silent())
    assert (tmp_path / "0" / "curves.csv").read_bytes() != (tmp_path / "1" / "curves.csv").read_bytes()


def test_all_models_start_and_see_their_samples_alike_in_both_dtypes():
    one, other = (load("Iris", dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert all(torch.equal(a.double(), b.float().double()) for a, b in zip(one.inputs, other.inputs, strict=True))
    single, double = (job for job in planned(models=("MLP",)) if job.how == "SGD" and job.scenario.name == "GD-a")
    assert (single.dtype, double.dtype) == ("float32", "float64")
    assert replace(single, dtype="float64") == double


def test_a_cell_that_misses_its_bound_makes_the_command_fail_and_is_named(tmp_path, monkeypatch):
    right = comparison.Hyper.from_sgd

    def wrong(**sgd):
        return right(**{**sgd, "lr": 0.02 if sgd["momentum"] == 0.05 else sgd["lr"]})

    monkeypatch.setattr(comparison, "Hyper", type("Wrong", (), {"from_sgd": staticmethod(wrong)}))
    result = invoke("reproduce", *QUICK, "--dtype", "float32", "--out", tmp_path)
    assert result.exit_code == 1
    text = plain(result.output)
    named = re.findall(r"missed: (.+)", text)
    assert len(named) == 2
    assert named[0].startswith("Linear Mom-a output in float32: |Δθ| is ")
    assert named[0].endswith("allowed is 0")
    assert named[1].startswith("Linear Mom-a state in float32")
    assert "2 checks missed" in text
    assert {row["scenario"] for row in table(tmp_path / "table.csv") if row["passed"] == "False"} == {"Mom-a"}
    assert "Linear Mom-a state in float32" in (tmp_path / "report.html").read_text()


def row(**changes):
    one = planned(models=("RNN",))[1]
    base = results.Row(one, Difference(0, 0, 0), [0.7, 0.5], [0.5, 0.9], [0.7, 0.5], [0.5, 0.9], 0.5)
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"gap": Difference(math.nan, math.nan, math.nan)}, "is nan, allowed is"),
        ({"hl_loss": [0.7, 0.7]}, "does not fall"),
        ({"hl_loss": [0.7, 0.7], "sgd_loss": [0.7, 0.7]}, None),
        ({"hl_accuracy": [0.5, 0.5]}, "no better than chance"),
        ({"hl_accuracy": [0.5, 0.5], "sgd_accuracy": [0.5, 0.5]}, None),
    ],
)
def test_a_gap_that_is_not_a_number_and_a_run_that_learns_nothing_where_sgd_does_are_misses(changes, words):
    misses = row(**changes).misses
    assert row(**changes).passed == (not misses) == (words is None)
    assert words is None or words in misses[0]


def test_float64_alone_takes_everything_and_beside_float32_it_cuts_reviews_and_leaves_output_nets_out():
    alone = [job for job in planned(precision="float64") if job.how != "SGD"]
    assert len(alone) == 56
    assert {job.length for job in alone} == {None}
    second = [job for job in planned() if job.dtype == "float64"]
    assert {(job.data == "IMDb", job.length) for job in second} == {(True, 64), (False, None)}
    assert "output" not in {job.how for job in second}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"models": ("Lineal",)}, "models has 'Lineal': choose from Linear, MLP"),
        ({"scenarios": ("GD-c",)}, "scenarios has 'GD-c': choose from GD-a, GD-b"),
        ({"models": ()}, "models is empty"),
        ({"epochs": 0}, "epochs=0 would train nothing"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_with_what_can(arguments, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        Settings(**arguments)


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--dtype", "float7"], ["--jobs", "0"]])
def test_options_out_of_range_exit_with_two(arguments):
    assert invoke("reproduce", *arguments).exit_code == 2


def test_help_teaches_what_is_checked_and_how_to_look_quickly():
    text = " ".join(plain(invoke("reproduce", "--help", env={"COLUMNS": "200"}).output).split())
    for words in (
        "exactly 0 for output nets in float32",
        "Exits with 1 if a cell misses its bound",
        "--models Linear,MLP --epochs 5",
        f"[default: {','.join(MODELS)}]",
        f"[default: {','.join(SCENARIOS)}]",
    ):
        assert words in text
