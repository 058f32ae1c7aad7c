"""The data reader, the study and the benchmark, on small data."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch

from hamlearn.bench import local as bench
from hamlearn.errors import ConfigError
from hamlearn.experiments import locality
from hamlearn.experiments._classification import mnist_data
from hamlearn.experiments._idx import mnist, read_idx

DATA = Path(os.environ.get("HAMLEARN_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_mnist = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="no MNIST: set HAMLEARN_DATA to a folder that holds mnist/*.gz"
)


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def idx(shape: list[int], body: bytes, mark: bytes = b"\0\0\x08") -> bytes:
    return gzip.compress(mark + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + body)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx([2, 3], bytes(5)), r"5 bytes.*\(2, 3\) asks for 6"),
        (idx([2, 3], bytes(7)), r"7 bytes"),
        (idx([2], bytes(2), mark=b"\0\0\x0d"), "00000d01"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "header of 3"),
        (gzip.compress(b""), "mark of an IDX"),
        (idx([9], bytes(9))[:-6], "gzip"),
        (b"PK not gzip", "gzip"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(content, says, tmp_path):
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_idx(tmp_path / "x.gz")


def test_a_missing_file_and_a_wrong_checksum_are_named(tmp_path):
    with pytest.raises(ConfigError, match="missing"):
        mnist(tmp_path)
    with pytest.raises(ConfigError, match="missing"):
        read_idx(tmp_path / "x.gz")
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes(idx([1], bytes(1)))
    with pytest.raises(ConfigError, match="md5"):
        mnist(tmp_path)


@needs_mnist
def test_mnist_is_read_whole():
    images, labels = mnist(DATA, "t10k")
    assert images.shape == (10000, 28, 28)
    assert torch.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@needs_mnist
def test_an_aligned_chain_learns_mnist_from_a_new_image_every_tick():
    data = mnist_data(DATA)
    aligned = locality.Setting(6, align=True)
    shape = {"count": 1000, "passes": 1, "width": 128, "depth": 6}
    found = locality.trial(data, aligned, 0.005, **shape)
    plain = locality.trial(data, locality.Setting(None), 0.005, **shape)
    assert found["test"] > 0.7
    assert plain["test"] - found["test"] < 0.05


def test_the_study_writes_its_table_and_figure(tmp_path):
    pytest.importorskip("sklearn")
    found = locality.run(tmp_path, None, quick=True)
    assert json.loads((tmp_path / "locality.json").read_text()) == json.loads(json.dumps(found))
    rows = {row["label"]: row["test"] for row in found["digits"]}
    assert rows["BackPropagation"] > 0.6
    assert rows["4 groups, aligned, hold 1"] > 0.6
    assert rows["4 groups, unaligned, hold 1"] < rows["4 groups, aligned, hold 1"] - 0.1
    assert (tmp_path / "locality.png").stat().st_size > 10_000


def test_the_benchmark_writes_a_dated_report(tmp_path):
    report = bench.run(tmp_path, quick=True)
    (path,) = tmp_path.glob("*-local.json")
    assert json.loads(path.read_text())["results"] == report
    assert set(report["rows"][0]["process"]["times faster"]) >= {"BackPropagation", "unaligned", "aligned"}
