"""Reader of the IDX files that MNIST comes in."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hamlearn.errors import DataError
from hamlearn.experiments.data._choice import first_of_each
from hamlearn.experiments.data._dataset import Raw
from hamlearn.experiments.data._files import Checksum, check, reading

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def read_idx(path: str | Path) -> Tensor:
    """The bytes of a gzipped IDX file of unsigned bytes, in its own shape.

    Example:
        >>> import gzip, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.gz"
        >>> _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])))
        >>> read_idx(path)
        tensor([7, 9], dtype=torch.uint8)
    """
    path = Path(path)
    with reading(path) as file:
        raw = file.read()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path} starts with {raw[:4].hex()}, not with the mark of an IDX file of bytes, 000008")
    dimensions, start = raw[3], 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path} ends within its header of {dimensions} dimensions: fetch it again")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{path} holds {len(raw) - start} bytes where its shape {shape} asks for {math.prod(shape)}: "
            "fetch it again"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy())


def mnist(folder: str | Path, split: str = "train") -> tuple[Tensor, Tensor]:
    """Images (uint8, n × 28 × 28) and labels of MNIST, checked against the official md5.

    Args:
        folder: Holds the four official files, or a folder `mnist` that does.
        split: `"train"` or `"t10k"`.
    """
    folder = Path(folder) / "mnist" if (Path(folder) / "mnist").is_dir() else Path(folder)
    images, labels = f"{split}-images-idx3-ubyte.gz", f"{split}-labels-idx1-ubyte.gz"
    for name in (images, labels):
        check(folder / name, Checksum("md5", MD5[name]))
    return read_idx(folder / images), read_idx(folder / labels).long()


def ten_of_each(images: Path, labels: Path) -> Raw:
    """The first ten images of each class, pixels of 0 to 1."""
    u, target = read_idx(images), read_idx(labels)
    if u.shape[1:] != (28, 28) or target.shape != u.shape[:1]:
        raise DataError(
            f"{images} has the shape {tuple(u.shape)} and {labels} {tuple(target.shape)} "
            "where (n, 28, 28) and (n,) are expected: they are not of MNIST"
        )
    chosen = first_of_each(target.tolist(), 10, 10, str(labels))
    values = u[chosen].double()[:, None] / 255
    return Raw("MNIST, the first 10 test images of each class", list(values), target[chosen].tolist(), 10)
