"""MNIST and IMDb from a folder that holds `mnist/`, `imdb/` and `glove/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hamlearn.errors import DataError
from hamlearn.experiments.data._archives import read_tar
from hamlearn.experiments.data._dataset import Raw
from hamlearn.experiments.data._files import Checksum, check
from hamlearn.experiments.data._idx import MD5, ten_of_each
from hamlearn.experiments.data._reviews import Review, read_csv
from hamlearn.experiments.data._words import embed

IMDB = Checksum("md5", "7c2ac02c03563afcf9b574c7e56c153a")
GLOVE = Checksum("sha256", "d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f")

IMDB_IS = "IMDb, 100 training reviews, 50 per class, as GloVe's vectors of 50 numbers"
OWN_IS = "100 reviews of your own from reviews.csv, 50 per class, as GloVe's vectors of 50 numbers"


@dataclass(frozen=True)
class _Reviews:
    read: Callable[[Path], list[Review]]
    description: str = IMDB_IS
    checksum: Checksum | None = None


_REVIEWS = {
    "imdb/reviews.csv": _Reviews(read_csv, OWN_IS),
    "imdb/reviews.csv.gz": _Reviews(
        read_csv,
        checksum=Checksum("sha256", "649dbdd38a8de0fc1e8f3876f0bfa42673a1f01f7dc259eb3dab29115137aa07"),
    ),
    "imdb/aclImdb_v1.tar.gz": _Reviews(read_tar, checksum=IMDB),
}
_VECTORS = {
    "glove/glove.6B.50d.txt": GLOVE,
    "glove/glove.6B.50d.txt.gz": GLOVE,
    "glove/glove.6B.50d.subset.txt.gz": Checksum(
        "sha256", "4f2cc6066eb30ab6226b7fd2e59c6c28f874f2f517d71b29669bbd0a73549591"
    ),
}


def mnist(folder: Path) -> Raw:
    """The first ten test images of each class, from the official files."""
    names = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    for name in names:
        check(folder / "mnist" / name, Checksum("md5", MD5[name]))
    return ten_of_each(*(folder / "mnist" / name for name in names))


def imdb(folder: Path) -> Raw:
    """100 reviews, 50 of each class, as the GloVe vectors of their words."""
    path, vectors = _first(folder, _REVIEWS), _first(folder, _VECTORS)
    reviews, checksum = _REVIEWS[path], _VECTORS[vectors]
    if reviews.checksum is not None:
        check(folder / path, reviews.checksum)
    # GloVe may have been packed again, by anyone; what it unpacks to is what counts.
    check(folder / vectors, checksum, unpack=checksum == GLOVE)
    return embed(reviews.description, reviews.read(folder / path), folder / vectors)


def _first(folder: Path, names: Iterable[str]) -> str:
    for name in names:
        if (folder / name).is_file():
            return name
    raise DataError(f"{folder} holds none of {', '.join(names)}: put one of them there, or name another folder")
