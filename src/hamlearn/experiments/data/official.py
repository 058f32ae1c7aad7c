"""MNIST, IMDb and GloVe: official files, fetched once by pooch, or from a folder with the same layout."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from hamlearn.errors import ConfigError, DataError, DownloadError
from hamlearn.experiments.data import readers
from hamlearn.experiments.data.readers import Raw

IMAGES, LABELS = "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"
REVIEWS, ARCHIVE, VECTORS = "imdb/aclImdb_v1.tar.gz", "glove/glove.6B.zip", "glove/glove.6B.50d.txt"
MARKED, SUBSET = "imdb/reviews.csv.gz", "glove/glove.6B.50d.subset.txt.gz"

ADDRESSES = {
    IMAGES: "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz",
    LABELS: "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz",
    REVIEWS: "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    ARCHIVE: "https://nlp.stanford.edu/data/glove.6B.zip",
}
"""Where the official files are, by their path in the cache."""

CHECKSUMS = {
    IMAGES: "md5:9fb629c4189551a2d022fa330f9573f3",
    LABELS: "md5:ec29112dd5afa0611ce80d1b7f02629c",
    "mnist/train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    REVIEWS: "md5:7c2ac02c03563afcf9b574c7e56c153a",
    MARKED: "sha256:649dbdd38a8de0fc1e8f3876f0bfa42673a1f01f7dc259eb3dab29115137aa07",
    ARCHIVE: "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    VECTORS: "sha256:d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f",
    SUBSET: "sha256:4f2cc6066eb30ab6226b7fd2e59c6c28f874f2f517d71b29669bbd0a73549591",
}
"""Of every file that a data folder may hold; the cache has the layout of a data folder."""


def cache_folder() -> Path:
    """`$HAMLEARN_CACHE` if it is set, else the user's cache folder: on Linux `~/.cache/hamlearn`.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    import pooch

    return Path(os.environ.get("HAMLEARN_CACHE") or pooch.os_cache("hamlearn")).expanduser()


def download(name: str, cache: str | Path | None = None) -> Path:
    """Fetch the official files of a data set that the cache does not have yet; returns the cache folder.

    The cache can be copied to a machine without network and used there as a data folder.

    Args:
        name: `"MNIST"` (1.7 MB) or `"IMDb"` (84 MB, and 862 MB of GloVe, of which 171 MB are kept).
        cache: The folder; `None` is that of `cache_folder()`.

    Raises:
        DownloadError: There is no network, or the file is not the right one.
        DataError: The cache cannot be written.

    Example:
        >>> download("Iris")
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: name='Iris' has nothing to download: give 'MNIST' or 'IMDb'
    """
    if name not in ("MNIST", "IMDb"):
        raise ConfigError(f"name={name!r} has nothing to download: give 'MNIST' or 'IMDb'")
    cache = cache_folder() if cache is None else Path(cache)
    try:
        for path in (IMAGES, LABELS) if name == "MNIST" else (REVIEWS,):
            _fetch(path, cache)
        if name == "IMDb" and not _matches(cache, VECTORS):
            packed = _fetch(ARCHIVE, cache)
            with zipfile.ZipFile(packed) as archive:
                archive.extract(Path(VECTORS).name, packed.parent)
            packed.unlink()
    except OSError as error:
        raise DataError(
            f"{cache} cannot be written ({error}): free space there, or name another folder in HAMLEARN_CACHE"
        ) from error
    return cache


def _fetch(path: str, cache: Path) -> Path:
    """The file below the cache; pooch verifies its checksum."""
    import pooch
    import requests

    url, target = ADDRESSES[path], cache / path
    # Bytes as they are on the server: a .gz file must not be unpacked on the way.
    fetcher = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), headers={"Accept-Encoding": "identity"})
    try:
        return Path(pooch.retrieve(url, CHECKSUMS[path], target.name, target.parent, downloader=fetcher))
    except (requests.RequestException, ValueError) as error:
        raise DownloadError(
            f"{path} could not be downloaded from {url}: {error}. Run the same command again once the network is "
            f"back, or fetch it elsewhere and save it as {target}; or take the source 'embedded'."
        ) from error


def mnist(folder: Path) -> Raw:
    """The first ten test images of each class, pixels of 0 to 1."""
    u, every = mnist_split(folder, "t10k")
    labels = every.tolist()
    chosen = readers.first_of_each(labels, classes=10, count=10)
    values = u[chosen].double()[:, None] / 255
    return Raw("MNIST, the first 10 test images of each class", list(values), [labels[i] for i in chosen], 10)


def mnist_split(folder: str | Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (uint8, n × 28 × 28) and labels of MNIST.

    Args:
        folder: Holds `mnist/` with the official files.
        split: `"train"` or `"t10k"`.
    """
    names = (f"mnist/{split}-images-idx3-ubyte.gz", f"mnist/{split}-labels-idx1-ubyte.gz")
    images, labels = (readers.read_idx(_checked(Path(folder), name)) for name in names)
    return images, labels.long()


def imdb(folder: Path) -> Raw:
    """50 training reviews of each class as the GloVe vectors of their words; unknown words are left out."""
    path, vectors = _checked(folder, MARKED, REVIEWS), _checked(folder, VECTORS, SUBSET)
    reviews = readers.read_tar(path) if path.name.endswith(".tar.gz") else readers.read_csv(path)
    split = [readers.tokens(text) for text, _ in reviews]
    known = readers.read_vectors(vectors, {word for words in split for word in words})
    values = [torch.stack([known[word] for word in words if word in known]) for words in split]
    description = "IMDb, 100 training reviews, 50 per class, as GloVe's vectors of 50 numbers"
    return Raw(description, values, [label for _, label in reviews], 2)


def _checked(folder: Path, *names: str) -> Path:
    """The first of these files that the folder has, once its checksum is verified."""
    found = next((name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{folder} has no {' or '.join(names)}: put the file there, or give another folder")
    if not _matches(folder, found):
        raise DataError(
            f"{folder / found} does not have the checksum {CHECKSUMS[found]}: it is damaged, so fetch it again"
        )
    return folder / found


def _matches(folder: Path, path: str) -> bool:
    """Whether a folder has this file with its checksum."""
    import pooch

    return (folder / path).is_file() and pooch.hashes.hash_matches(str(folder / path), CHECKSUMS[path])
