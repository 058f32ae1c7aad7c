"""Official files of MNIST, IMDb and GloVe: where they are, their checksums, and a cache for them."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hamlearn.errors import ConfigError, DataError, DownloadError

IMAGES, LABELS = "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"
REVIEWS, ARCHIVE, VECTORS = "imdb/aclImdb_v1.tar.gz", "glove/glove.6B.zip", "glove/glove.6B.50d.txt"

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/", "https://storage.googleapis.com/cvdf-datasets/")


@dataclass(frozen=True)
class Remote:
    """A file on the network.

    Attributes:
        checksum: Algorithm and digest, as `"md5:…"` or `"sha256:…"`.
        urls: Where it comes from; they are tried in turn. Empty for a file that is unpacked from another one.

    Example:
        >>> Remote("md5:03d59e663c1af9ac33a9949d1193505a", ("https://example.org/some.txt",)).urls[0]
        'https://example.org/some.txt'
    """

    checksum: str
    urls: tuple[str, ...] = ()


OFFICIAL: Mapping[str, Remote] = {
    IMAGES: Remote("md5:9fb629c4189551a2d022fa330f9573f3", tuple(place + IMAGES for place in _MNIST)),
    LABELS: Remote("md5:ec29112dd5afa0611ce80d1b7f02629c", tuple(place + LABELS for place in _MNIST)),
    REVIEWS: Remote(
        "md5:7c2ac02c03563afcf9b574c7e56c153a",
        ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    ),
    ARCHIVE: Remote(
        "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
        (
            "https://nlp.stanford.edu/data/glove.6B.zip",
            "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
            "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
        ),
    ),
    VECTORS: Remote("sha256:d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f"),
}
"""The official files by their path in the cache, which has the layout of a data folder."""


def cache_folder() -> Path:
    """`$HAMLEARN_CACHE` if it is set, else the user's cache folder: on Linux `~/.cache/hamlearn`.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    import pooch

    return Path(os.environ.get("HAMLEARN_CACHE") or pooch.os_cache("hamlearn")).expanduser()


def download(name: str, cache: str | Path | None = None, files: Mapping[str, Remote] = OFFICIAL) -> Path:
    """Fetch the official files of a data set that the cache does not have yet; returns the cache folder.

    The cache has the layout of a data folder, so it can be copied to a machine without network and used there.

    Args:
        name: `"MNIST"` (1.7 MB) or `"IMDb"` (84 MB, and 862 MB of GloVe, of which 171 MB are kept).
        cache: The folder; `None` is that of `cache_folder()`.
        files: Other addresses, for a mirror.

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
            _fetch(path, cache, files)
        if name == "IMDb" and not matches(cache / VECTORS, files[VECTORS].checksum):
            packed = _fetch(ARCHIVE, cache, files)
            with zipfile.ZipFile(packed) as archive:
                archive.extract(Path(VECTORS).name, packed.parent)
            packed.unlink()
    except OSError as error:
        raise DataError(
            f"{cache} cannot be written ({error}): make room there, or name another folder in HAMLEARN_CACHE"
        ) from error
    return cache


def matches(path: Path, checksum: str) -> bool:
    """Whether a file exists and has this checksum."""
    import pooch

    return path.is_file() and pooch.hashes.hash_matches(str(path), checksum)


def _fetch(path: str, cache: Path, files: Mapping[str, Remote]) -> Path:
    """The file below the cache, from the first address that has it whole; pooch verifies the checksum."""
    import pooch
    import requests

    remote, target = files[path], cache / path
    # Bytes as they are on the server: a .gz file must not be unpacked on the way.
    fetcher = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
    )
    failures = []
    for url in remote.urls:
        try:
            found = pooch.retrieve(url, remote.checksum, target.name, target.parent, downloader=fetcher)
        except (requests.RequestException, ValueError) as error:
            failures.append(f"{url}: {error}")
        else:
            return Path(found)
    raise DownloadError(
        f"{path} could not be downloaded: {'; '.join(failures)}. Run the same command again once the network is "
        f"back, or fetch it elsewhere and save it as {target}; or take the source 'embedded'."
    )
