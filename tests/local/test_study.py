"""The study and the benchmark, on small data."""

import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks import local as bench
from benchmarks import locality
from benchmarks._classification import mnist_data

DATA = Path(os.environ.get("HAMLEARN_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_mnist = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="no MNIST: set HAMLEARN_DATA to a folder that holds mnist/*.gz"
)


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


@needs_mnist
def test_an_aligned_chain_learns_mnist_from_a_new_image_every_tick():
    data = mnist_data(DATA)
    aligned = locality.Setting(6, align=True)
    shape = {"count": 1000, "passes": 1, "width": 128, "depth": 6}
    found = locality.trial(data, aligned, 0.005, **shape)
    plain = locality.trial(data, locality.Setting(None), 0.005, **shape)
    assert found["test"] > 0.7
    assert plain["test"] - found["test"] < 0.05


def test_the_benchmark_writes_a_dated_report(tmp_path):
    report = bench.run(tmp_path, quick=True)
    (path,) = tmp_path.glob("*-local.json")
    assert json.loads(path.read_text())["results"] == report
    assert set(report["rows"][0]["process"]["times faster"]) >= {"BackPropagation", "unaligned", "aligned"}
