"""Readers of the official archives: the reviews of IMDb in a tar, the vectors of GloVe in a zip.

Nothing is extracted under a name that an archive chooses.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path

from hamlearn.errors import DataError
from hamlearn.experiments.data._files import Checksum, check, writing
from hamlearn.experiments.data._reviews import PER_CLASS, Review

_REVIEW = re.compile(r"aclImdb/train/(pos|neg)/(\d+)_\d+\.txt")
_APART = 250
"""12,500 reviews a class, 50 to take. Neighbours are often about one movie, so they are taken far apart."""
_LONGEST = 1 << 20
"""Bytes; the longest of the official reviews has some 14,000."""


def read_tar(path: str | Path) -> list[Review]:
    """100 training reviews: those numbered 0, 250, …, 12250 of each class, by turns, blame first.

    Args:
        path: `aclImdb_v1.tar.gz`, whose members are named `aclImdb/train/pos/NUMBER_STARS.txt`.
    """
    path = Path(path)
    wanted = {(kind, number * _APART) for kind in ("neg", "pos") for number in range(PER_CLASS)}
    texts: dict[tuple[str, int], str] = {}
    try:
        # As a stream, and no further than the last review that is wanted.
        with tarfile.open(path, "r|gz") as tar:
            for member in tar:
                found = _REVIEW.fullmatch(member.name)
                if found is None or (key := (found[1], int(found[2]))) not in wanted:
                    continue
                file = tar.extractfile(member) if member.isreg() and member.size <= _LONGEST else None
                if file is None or key in texts:
                    raise DataError(
                        f"{path}: {member.name} is no single file of a review's length: fetch it again"
                    )
                texts[key] = file.read().decode()
                if len(texts) == len(wanted):
                    break
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put it there, or name another folder") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {member.name} is not UTF-8 ({error}): fetch it again") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} is not a whole tar.gz file ({error}): fetch it again") from error
    if missing := sorted(wanted - texts.keys()):
        kind, number = missing[0]
        raise DataError(
            f"{path} lacks {len(missing)} of the {len(wanted)} reviews, such as "
            f"aclImdb/train/{kind}/{number}_*.txt: fetch it again"
        )
    return [(texts[kind, n * _APART], int(kind == "pos")) for n in range(PER_CLASS) for kind in ("neg", "pos")]


def unzip(path: Path, member: str, target: Path, checksum: Checksum) -> None:
    """Unpack one member of a zip file to `target`, which appears only when it is whole and right."""
    part = target.with_name(target.name + ".part")
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(member) as packed,
            writing(part),
            part.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError as error:
        raise DataError(f"{path} has no member {member}: fetch it again") from error
    except (zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} is not a whole zip file ({error}): fetch it again") from error
    try:
        check(part, checksum)
    except DataError:
        part.unlink()
        raise
    with writing(target):
        part.replace(target)
