"""MNIST and IMDb from a folder of checked files: `mnist/`, `imdb/` and `glove/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hamlearn.errors import DataError
from hamlearn.experiments.data.cache import IMAGES, LABELS, OFFICIAL, REVIEWS, VECTORS, matches
from hamlearn.experiments.data.readers import (
    Raw,
    first_of_each,
    read_csv,
    read_idx,
    read_tar,
    read_vectors,
    tokens,
)

CHECKSUMS: dict[str, str] = {
    "mnist/train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "imdb/reviews.csv.gz": "sha256:649dbdd38a8de0fc1e8f3876f0bfa42673a1f01f7dc259eb3dab29115137aa07",
    "glove/glove.6B.50d.subset.txt.gz": "sha256:4f2cc6066eb30ab6226b7fd2e59c6c28f874f2f517d71b29669bbd0a73549591",
    **{path: remote.checksum for path, remote in OFFICIAL.items()},
}
"""Of every file that a data folder may hold."""


def mnist(folder: Path, checksums: Mapping[str, str] = CHECKSUMS) -> Raw:
    """The first ten test images of each class, pixels of 0 to 1."""
    u = read_idx(_checked(folder, [IMAGES], checksums))
    labels = read_idx(_checked(folder, [LABELS], checksums)).tolist()
    chosen = first_of_each(labels, classes=10, count=10)
    values = u[chosen].double()[:, None] / 255
    return Raw("MNIST, the first 10 test images of each class", list(values), [labels[i] for i in chosen], 10)


def mnist_split(folder: str | Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (uint8, n × 28 × 28) and labels of MNIST.

    Args:
        folder: Holds `mnist/` with the official files.
        split: `"train"` or `"t10k"`.
    """
    names = (f"mnist/{split}-images-idx3-ubyte.gz", f"mnist/{split}-labels-idx1-ubyte.gz")
    images, labels = (read_idx(_checked(Path(folder), [name], CHECKSUMS)) for name in names)
    return images, labels.long()


def imdb(folder: Path, checksums: Mapping[str, str] = CHECKSUMS) -> Raw:
    """50 training reviews of each class as the GloVe vectors of their words; unknown words are left out."""
    path = _checked(folder, ["imdb/reviews.csv.gz", REVIEWS], checksums)
    vectors = _checked(folder, [VECTORS, "glove/glove.6B.50d.subset.txt.gz"], checksums)
    reviews = read_tar(path) if path.name.endswith(".tar.gz") else read_csv(path)
    split = [tokens(text) for text, _ in reviews]
    known = read_vectors(vectors, {word for words in split for word in words})
    values = [torch.stack([known[word] for word in words if word in known]) for words in split]
    description = "IMDb, 100 training reviews, 50 per class, as GloVe's vectors of 50 numbers"
    return Raw(description, values, [label for _, label in reviews], 2)


def _checked(folder: Path, names: list[str], checksums: Mapping[str, str]) -> Path:
    """The first of these files that the folder has, once its checksum is verified."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"{folder} has no {' or '.join(names)}: put the file there, or give another folder")
    checksum = checksums[path.relative_to(folder).as_posix()]
    if not matches(path, checksum):
        raise DataError(
            f"{path} does not have the checksum {checksum}: it is damaged or another file; fetch it again"
        )
    return path
