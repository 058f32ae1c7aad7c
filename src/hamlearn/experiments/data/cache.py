"""Official files of MNIST, IMDb and GloVe: their addresses and checksums, and a cache for them."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hamlearn.errors import ConfigError, DataError, DownloadError

IMAGES, LABELS = "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"
REVIEWS, ARCHIVE, VECTORS = "imdb/aclImdb_v1.tar.gz", "glove/glove.6B.zip", "glove/glove.6B.50d.txt"

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/", "https://storage.googleapis.com/cvdf-datasets/")
ADDRESSES: Mapping[str, tuple[str, ...]] = {
    IMAGES: tuple(place + IMAGES for place in _MNIST),
    LABELS: tuple(place + LABELS for place in _MNIST),
    REVIEWS: ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    ARCHIVE: (
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
        "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
    ),
}
"""Where the official files are, tried in turn, by their path in the cache."""

CHECKSUMS: Mapping[str, str] = {
    IMAGES: "md5:9fb629c4189551a2d022fa330f9573f3",
    LABELS: "md5:ec29112dd5afa0611ce80d1b7f02629c",
    "mnist/train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    REVIEWS: "md5:7c2ac02c03563afcf9b574c7e56c153a",
    "imdb/reviews.csv.gz": "sha256:649dbdd38a8de0fc1e8f3876f0bfa42673a1f01f7dc259eb3dab29115137aa07",
    ARCHIVE: "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    VECTORS: "sha256:d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f",
    "glove/glove.6B.50d.subset.txt.gz": "sha256:4f2cc6066eb30ab6226b7fd2e59c6c28f874f2f517d71b29669bbd0a73549591",
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
        DownloadError: No address has the right file.
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
        if name == "IMDb" and not matches(cache, VECTORS):
            packed = _fetch(ARCHIVE, cache)
            with zipfile.ZipFile(packed) as archive:
                archive.extract(Path(VECTORS).name, packed.parent)
            packed.unlink()
    except OSError as error:
        raise DataError(
            f"{cache} cannot be written ({error}): free space there, or name another folder in HAMLEARN_CACHE"
        ) from error
    return cache


def matches(folder: Path, path: str) -> bool:
    """Whether a folder has this file with its checksum."""
    import pooch

    return (folder / path).is_file() and pooch.hashes.hash_matches(str(folder / path), CHECKSUMS[path])


def _fetch(path: str, cache: Path) -> Path:
    """The file below the cache, from the first address that has it whole; pooch verifies the checksum."""
    import pooch
    import requests

    target, failures = cache / path, []
    # Bytes as they are on the server: a .gz file must not be unpacked on the way.
    fetcher = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
    )
    for url in ADDRESSES[path]:
        try:
            return Path(pooch.retrieve(url, CHECKSUMS[path], target.name, target.parent, downloader=fetcher))
        except (requests.RequestException, ValueError) as error:
            failures.append(f"{url}: {error}")
    raise DownloadError(
        f"{path} could not be downloaded: {'; '.join(failures)}. Run the same command again once the network is "
        f"back, or fetch it elsewhere and save it as {target}; or take the source 'embedded'."
    )
