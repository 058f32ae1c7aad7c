"""The benchmark of streams runs, and refuses to compare what does not learn the same."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from benchmarks import ROOT
from benchmarks import _stream_contenders as contenders
from benchmarks import _stream_single as single
from benchmarks._stream_workloads import WORKLOADS, make_problem
from hamlearn.errors import HamlearnError

pytestmark = pytest.mark.slow

EVERYWHERE = {"sgd_eager", "hl_eager", "hl_compiled", "hl_each_loss", "hl_scan", "hl_loop"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    # A process of its own: JAX watches forks, and would warn of those of later tests.
    out = tmp_path_factory.mktemp("stream")
    command = [sys.executable, "-m", "benchmarks.stream", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*-stream.json")
    return json.loads(path.read_text())


def test_every_workload_is_measured_with_machine_and_versions(report):
    cells = report["results"]["single"]["cells"]
    assert [cell["workload"] for cell in cells] == [workload.name for workload in WORKLOADS]
    for cell in cells:
        assert set(cell["microseconds"]) >= EVERYWHERE
        assert all(micro > 0 for micro in cell["microseconds"].values())
        assert set(cell["over_sgd"]) == set(cell["microseconds"]) - {"sgd_eager"}
    assert report["rerun"] == "hamlearn bench stream"
    assert report["environment"]["torch"] == torch.__version__


def test_both_engines_are_compared_batch_by_batch(report):
    found = report["results"]["batches"]
    assert [(cell["network"], cell["batch"], cell["stays_eager"]) for cell in found["cells"]] == [
        ("Linear 4-3", 1, False),
        ("MLP 4-30-3", 1, False),
    ]
    for cell in found["cells"]:
        eager, compiled = (cell["microseconds"][name] for name in ("eager", "compiled"))
        assert cell["compiled_over_eager"] == pytest.approx(eager / compiled, rel=0.05)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_the_twins_in_jax_learn_the_same(report):
    for cell in report["results"]["single"]["cells"]:
        assert "jax_scan" not in cell["missing"], cell["missing"]
        assert cell["loss_differences"]["jax_scan"] < 1e-4


def test_compiled_sgd_is_measured_too(report):
    cell = report["results"]["single"]["cells"][1]
    assert set(cell["microseconds"]) >= {"sgd_compiled", "sgd_one_graph"}, cell["missing"]


def test_curves_that_differ_are_refused():
    curves = {"sgd_eager": torch.ones(10), "hl_compiled": torch.ones(10) + 1e-3 * torch.arange(10)}
    with pytest.raises(HamlearnError, match=r"hl_compiled are 9\.0e-03 of the mean loss away"):
        single._agreement(WORKLOADS[0], curves)
    curves["hl_compiled"] = torch.full((10,), torch.nan)
    with pytest.raises(HamlearnError, match="do not learn the same"):
        single._agreement(WORKLOADS[0], curves)


@pytest.mark.parametrize("make", [contenders.sgd_eager, contenders.hl_eager, contenders.hl_loop])
def test_a_second_pass_goes_on_where_the_first_one_ended(make):
    problem = make_problem(WORKLOADS[0], 2 * contenders.CHUNK, "cpu")
    one_pass = make(problem)
    first, second = one_pass(), one_pass()
    assert second.mean() < first.mean()


def test_without_jax_the_report_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    chosen = {"sgd_eager": contenders.sgd_eager, "hl_eager": contenders.hl_eager, "jax_scan": single._jax_scan()}
    cell = single._cell(WORKLOADS[1], contenders.CHUNK, contenders.CHUNK, 2, "cpu", chosen)
    assert "JAX is not installed" in cell["missing"]["jax_scan"]
    assert cell["over_jax"] == {}


def test_contenders_that_are_called_for_every_step_see_the_beginning_of_the_stream():
    seen = {}

    def listening(name, make):
        def made(problem):
            seen[name] = problem
            return make(problem)

        return made

    chosen = {
        "sgd_eager": contenders.sgd_eager,
        "hl_eager": contenders.hl_eager,
        "hl_each_loss": contenders.hl_each_loss,
    }
    chosen = {name: listening(name, make) for name, make in chosen.items()}
    single._cell(WORKLOADS[1], 2 * contenders.CHUNK, contenders.CHUNK, 2, "cpu", chosen)
    few, all_of_it = seen["sgd_eager"], seen["hl_each_loss"]
    assert (len(few.u), len(few.target), len(all_of_it.u)) == (256, 256, 512)
    assert few.u.equal(all_of_it.u[:256])
    assert few.target.equal(all_of_it.target[:256])


def test_what_a_machine_lacks_is_told_and_the_rest_is_measured():
    def broken(problem):
        raise RuntimeError("no compiler\nhere")

    chosen = {"sgd_eager": contenders.sgd_eager, "hl_eager": contenders.hl_eager, "sgd_compiled": broken}
    cell = single._cell(WORKLOADS[1], contenders.CHUNK, contenders.CHUNK, 2, "cpu", chosen)
    assert cell["missing"] == {"sgd_compiled": "RuntimeError: no compiler"}
    assert set(cell["microseconds"]) == {"sgd_eager", "hl_eager"}
    with pytest.raises(RuntimeError, match="no compiler"):
        single._cell(WORKLOADS[1], contenders.CHUNK, contenders.CHUNK, 2, "cpu", {**chosen, "hl_compiled": broken})


def test_every_source_is_read_and_learned_from(report):
    cells = report["results"]["sources"]["cells"]
    assert {"tensors", "standardised", "uneven", "csv", "csv, categories and gaps"} <= set(cells)
    assert all(cell["read"] > 0 and cell["learned"] > 0 for cell in cells.values())
