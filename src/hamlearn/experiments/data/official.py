"""MNIST and IMDb from a folder of checked files: `mnist/`, `imdb/` and `glove/`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hamlearn.errors import DataError
from hamlearn.experiments.data.cache import CHECKSUMS, IMAGES, LABELS, REVIEWS, VECTORS, matches
from hamlearn.experiments.data.readers import (
    Raw,
    first_of_each,
    read_csv,
    read_idx,
    read_tar,
    read_vectors,
    tokens,
)


def mnist(folder: Path) -> Raw:
    """The first ten test images of each class, pixels of 0 to 1."""
    u = read_idx(_checked(folder, [IMAGES]))
    labels = read_idx(_checked(folder, [LABELS])).tolist()
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
    images, labels = (read_idx(_checked(Path(folder), [name])) for name in names)
    return images, labels.long()


def imdb(folder: Path) -> Raw:
    """50 training reviews of each class as the GloVe vectors of their words; unknown words are left out."""
    path = _checked(folder, ["imdb/reviews.csv.gz", REVIEWS])
    vectors = _checked(folder, [VECTORS, "glove/glove.6B.50d.subset.txt.gz"])
    reviews = read_tar(path) if path.name.endswith(".tar.gz") else read_csv(path)
    split = [tokens(text) for text, _ in reviews]
    known = read_vectors(vectors, {word for words in split for word in words})
    values = [torch.stack([known[word] for word in words if word in known]) for words in split]
    description = "IMDb, 100 training reviews, 50 per class, as GloVe's vectors of 50 numbers"
    return Raw(description, values, [label for _, label in reviews], 2)


def _checked(folder: Path, names: list[str]) -> Path:
    """The first of these files that the folder has, once its checksum is verified."""
    found = next((name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{folder} has no {' or '.join(names)}: put the file there, or give another folder")
    if not matches(folder, found):
        raise DataError(
            f"{folder / found} does not have the checksum {CHECKSUMS[found]}: it is damaged, so fetch it again"
        )
    return folder / found
