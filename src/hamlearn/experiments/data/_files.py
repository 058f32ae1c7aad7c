"""Files as they lie on the disk: read, checked, and refused where they are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from hamlearn.errors import DataError


@dataclass(frozen=True)
class Checksum:
    """The digest that a file must have.

    Example:
        >>> Checksum("md5", "03d59e663c1af9ac33a9949d1193505a").algorithm
        'md5'
    """

    algorithm: Literal["md5", "sha256"]
    digest: str


@contextmanager
def reading(path: Path, unpack: bool = True) -> Iterator[gzip.GzipFile | BufferedReader]:
    """The bytes of a file, unpacked where its name ends in `.gz`; whatever breaks on the way is a `DataError`.

    Example:
        >>> with reading(Path("nowhere.csv.gz")) as file:
        ...     file.read()
        Traceback (most recent call last):
        ...
        hamlearn.errors.DataError: nowhere.csv.gz is missing: put it there, or name another folder
    """
    try:
        with path.open("rb") as file:
            if unpack and path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    yield unpacked
            else:
                yield file
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put it there, or name another folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): mend the file or its rights") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says of a full disk, a missing right or the like where it happened and what helps."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error}): make room there, or name another cache folder in HAMLEARN_CACHE"
        ) from error


def digest(path: Path, checksum: Checksum, unpack: bool = False) -> str:
    """The digest that a file has, by the algorithm of `checksum`; with `unpack`, of what a `.gz` file holds."""
    with reading(path, unpack) as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(checksum.algorithm, usedforsecurity=False)
        ).hexdigest()


def check(path: Path, checksum: Checksum, unpack: bool = False) -> None:
    """Refuse a file that is missing or has another digest.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "some.txt"
        >>> _ = path.write_text("some")
        >>> check(path, Checksum("md5", "03d59e663c1af9ac33a9949d1193505a"))
    """
    found = digest(path, checksum, unpack)
    if found != checksum.digest:
        raise DataError(
            f"{path} has {checksum.algorithm} {found}, not {checksum.digest}: it is damaged or another file; "
            "fetch it again"
        )
