"""The reader of MNIST's files."""

import gzip

import pytest
import torch

from hamlearn.errors import DataError
from hamlearn.experiments.data._idx import mnist, read_idx, ten_of_each
from tests.experiments.data.made import idx, images
from tests.experiments.data.real import DATA, needs_mnist


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx([2, 3], bytes(5)), r"5 bytes.*\(2, 3\) asks for 6"),
        (idx([2, 3], bytes(7)), r"7 bytes"),
        (idx([2], bytes(2), mark=b"\0\0\x0d"), "00000d01"),
        (gzip.compress(b"\0\0\x08\x03\0\0", mtime=0), "header of 3"),
        (gzip.compress(b"", mtime=0), "mark of an IDX"),
        (b"PK not gzip", "gzip"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(content, says, tmp_path):
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_idx(tmp_path / "x.gz")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = idx([9], bytes(range(9)))
    for length in range(len(whole)):
        (tmp_path / "x.gz").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"x\.gz"):
            read_idx(tmp_path / "x.gz")


def test_a_missing_file_and_a_wrong_checksum_are_named(tmp_path):
    with pytest.raises(DataError, match="missing"):
        mnist(tmp_path)
    with pytest.raises(DataError, match="missing"):
        read_idx(tmp_path / "x.gz")
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes(idx([1], bytes(1)))
    with pytest.raises(DataError, match=r"md5 .*, not f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        mnist(tmp_path)


def pair(folder, u, target):
    (folder / "u.gz").write_bytes(u)
    (folder / "t.gz").write_bytes(target)
    return folder / "u.gz", folder / "t.gz"


def test_ten_of_each_class_are_taken_in_the_order_of_the_file(tmp_path):
    raw = ten_of_each(*pair(tmp_path, *images()))
    assert raw.labels == [n % 10 for n in range(100)]
    assert [value.shape for value in raw.values] == [(1, 28, 28)] * 100
    assert torch.equal(raw.values[99], torch.full((1, 28, 28), 99 / 255, dtype=torch.float64))


@pytest.mark.parametrize(
    ("u", "target", "says"),
    [
        (images(90)[0], images(90)[1], "class 0 has 9 samples where 10"),
        (images()[0], images(110)[1], r"\(120, 28, 28\).*\(110,\)"),
        (idx([120, 14, 56], bytes(120 * 784)), images()[1], r"\(120, 14, 56\)"),
        (images()[0], idx([120], bytes(119) + b"\x0a"), "sample 119 has label 10, outside 0 to 9"),
    ],
)
def test_images_that_are_not_of_mnist_are_refused(u, target, says, tmp_path):
    with pytest.raises(DataError, match=says):
        ten_of_each(*pair(tmp_path, u, target))


@needs_mnist
def test_mnist_is_read_whole():
    u, target = mnist(DATA, "t10k")
    assert u.shape == (10000, 28, 28)
    assert torch.bincount(target).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
