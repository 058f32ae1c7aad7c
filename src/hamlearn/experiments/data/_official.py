"""MNIST, IMDb and GloVe from their official places, by way of a cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hamlearn.errors import ConfigError, install
from hamlearn.experiments.data._archives import read_tar, unzip
from hamlearn.experiments.data._dataset import Raw
from hamlearn.experiments.data._download import Remote, alone, fetch
from hamlearn.experiments.data._files import Checksum, digest
from hamlearn.experiments.data._folder import GLOVE, IMDB, IMDB_IS
from hamlearn.experiments.data._idx import MD5, ten_of_each
from hamlearn.experiments.data._words import embed

_VECTORS = "glove/glove.6B.50d.txt"

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")


def _mnist(name: str, size: int) -> Remote:
    return Remote(f"mnist/{name}", tuple(place + name for place in _MNIST), size, Checksum("md5", MD5[name]))


@dataclass(frozen=True)
class Places:
    """Where the official files are; make your own to download from a mirror.

    Attributes:
        images: MNIST's test images.
        labels: Their labels.
        reviews: The archive of IMDb's reviews.
        glove: The archive of GloVe's vectors.
        vectors: The digest of `glove.6B.50d.txt`, the one file of that archive that is used.

    Example:
        >>> from dataclasses import replace
        >>> mirrored = replace(OFFICIAL.images, urls=("https://mirror.example/t10k-images-idx3-ubyte.gz",))
        >>> replace(OFFICIAL, images=mirrored).labels == OFFICIAL.labels
        True
    """

    images: Remote
    labels: Remote
    reviews: Remote
    glove: Remote
    vectors: Checksum


OFFICIAL = Places(
    images=_mnist("t10k-images-idx3-ubyte.gz", 1_648_877),
    labels=_mnist("t10k-labels-idx1-ubyte.gz", 4_542),
    reviews=Remote(
        path="imdb/aclImdb_v1.tar.gz",
        urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
        size=84_125_825,
        checksum=IMDB,
    ),
    glove=Remote(
        path="glove/glove.6B.zip",
        urls=(
            "https://nlp.stanford.edu/data/glove.6B.zip",
            "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
            "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
        ),
        size=862_182_613,
        checksum=Checksum("sha256", "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"),
    ),
    vectors=GLOVE,
)
"""Where the files are unless you say otherwise."""


def cache_folder() -> Path:
    """`$HAMLEARN_CACHE` where it is set, else the user's cache folder: on Linux `~/.cache/hamlearn`.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    if named := os.environ.get("HAMLEARN_CACHE"):
        return Path(named).expanduser()
    try:
        import platformdirs
    except ImportError as error:
        raise ConfigError(f"downloads need platformdirs: {install('experiments')}") from error
    return platformdirs.user_cache_path("hamlearn", appauthor=False)


def download(
    name: str,
    cache: str | Path | None = None,
    *,
    places: Places = OFFICIAL,
    wait: float = 1.0,
    console: Console | None = None,
) -> Path:
    """Fetch the official files of a data set, so that they can be used offline from then on.

    What is in the cache already, whole and right, is not asked for again; what is damaged is replaced. A
    transfer that breaks off is continued, now or by the next call. The cache has the layout of a data folder:
    it can be copied to a machine without network and named there as the source.

    Args:
        name: `"MNIST"` (1.7 MB) or `"IMDb"` (84 MB, and 862 MB of GloVe, of which 171 MB are kept).
        cache: The folder; `None` is that of `cache_folder()`.
        places: Where to fetch from.
        wait: Seconds before the first new try after a failure; doubled for each further one.
        console: Where the progress bar is drawn; `None` is the standard error.

    Returns:
        The cache folder.

    Raises:
        DownloadError: No place has the right file; says what each of them answered.
        DataError: The cache cannot be written.

    Example:
        >>> download("Iris")
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: there is nothing to download for 'Iris': choose 'MNIST' or 'IMDb'
    """
    if name not in ("MNIST", "IMDb"):
        raise ConfigError(f"there is nothing to download for {name!r}: choose 'MNIST' or 'IMDb'")
    cache = cache_folder() if cache is None else Path(cache)
    if name == "MNIST":
        fetch(places.images, cache, wait=wait, console=console)
        fetch(places.labels, cache, wait=wait, console=console)
        return cache
    fetch(places.reviews, cache, wait=wait, console=console)
    vectors = cache / _VECTORS
    if not _is_right(vectors, places.vectors):
        with alone(vectors):
            if not _is_right(vectors, places.vectors):
                packed = fetch(places.glove, cache, wait=wait, console=console)
                unzip(packed, vectors.name, vectors, places.vectors)
                packed.unlink()
    return cache


def mnist(cache: str | Path | None = None, places: Places = OFFICIAL) -> Raw:
    """The first ten test images of each class, downloaded if need be."""
    folder = download("MNIST", cache, places=places)
    return ten_of_each(folder / places.images.path, folder / places.labels.path)


def imdb(cache: str | Path | None = None, places: Places = OFFICIAL) -> Raw:
    """50 training reviews of each class as GloVe vectors, downloaded if need be."""
    folder = download("IMDb", cache, places=places)
    return embed(IMDB_IS, read_tar(folder / places.reviews.path), folder / _VECTORS)


def _is_right(path: Path, checksum: Checksum) -> bool:
    return path.is_file() and digest(path, checksum) == checksum.digest
