"""Readers of the files that MNIST, IMDb and GloVe come in.

Checksums are verified before a file is read, so that the readers need not distrust what they read.
"""

from __future__ import annotations

import csv
import gzip
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

Review = tuple[str, int]
"""Text, and 1 for praise or 0 for blame."""

_APART = 250
"""12,500 reviews a class, 50 to take. Neighbours are often about one movie, so they are taken far apart."""
_TAG = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TOKEN = re.compile(
    r"""
    [^\W_]+(?=n't\b)                      # do + n't
    | n't\b
    | '(?:s|re|ve|ll|d|m)\b               # it + 's
    | \d+(?:[.,:/]\d+)*[^\W\d_]*          # 1,000  3.5  7/10  1980s
    | [^\W\d_]\.(?:[^\W\d_]\.)+           # u.s.
    | [^\W_]+
    | \.\.\.+ | --+ | \S
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Raw:
    """Values in float64, without batch dimension, in the order of their source."""

    description: str
    values: Sequence[Tensor]
    labels: Sequence[int]
    classes: int


def first_of_each(labels: Sequence[int], classes: int, count: int) -> list[int]:
    """Positions of the first `count` samples of each class.

    Example:
        >>> first_of_each([1, 0, 1, 1, 0], classes=2, count=2)
        [0, 1, 2, 4]
    """
    found: Counter[int] = Counter()
    taken = []
    for position, label in enumerate(labels):
        if found[label] < count:
            found[label] += 1
            taken.append(position)
    if len(taken) != classes * count:
        raise ValueError(f"{dict(found)} are not {count} samples of each of {classes} classes")
    return taken


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzipped IDX file of unsigned bytes, in its own shape."""
    raw = gzip.decompress(path.read_bytes())
    # Two zero bytes, the type (8: unsigned bytes), the number of dimensions, then each as a big-endian uint32.
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">u4", dimensions, offset=4).astype(int)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def read_csv(path: Path) -> list[Review]:
    """The reviews of a gzipped CSV file whose column `experiment` is 1, in the order of the file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["experiment"] == "1"]


def read_tar(path: Path) -> list[Review]:
    """100 training reviews of IMDb's archive: those numbered 0, 250, …, 12250 of each class, in turns.

    Nothing is unpacked to disk, so that no member can choose where it is written.
    """
    wanted = {(kind, number): "" for number in range(0, 50 * _APART, _APART) for kind in ("neg", "pos")}
    missing = len(wanted)
    # As a stream, and no further than the last review that is wanted.
    with tarfile.open(path, "r|gz") as tar:
        for member in tar:
            found = re.fullmatch(r"aclImdb/train/(pos|neg)/(\d+)_\d+\.txt", member.name)
            if found and (key := (found[1], int(found[2]))) in wanted:
                wanted[key] = cast(IO[bytes], tar.extractfile(member)).read().decode()
                missing -= 1
                if not missing:
                    break
    return [(text, int(kind == "pos")) for (kind, _), text in wanted.items()]


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """The GloVe vectors (float64) of those `words` that a file has, plain or `.gz`."""
    wanted = {word.encode() for word in words}
    vectors = {}
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        # By line feeds alone: some of GloVe's words hold characters that Unicode counts as line ends.
        for line in file:
            word, _, numbers = line.rstrip(b"\n").partition(b" ")
            if word in wanted:
                vectors[word.decode()] = torch.tensor([float(n) for n in numbers.split()], dtype=torch.float64)
    return vectors


def tokens(text: str) -> list[str]:
    """Lower-case words, numbers and punctuation marks of a review, separated as in GloVe's own corpus.

    Example:
        >>> tokens("I don't think it's <br /><br />well-made...")
        ['i', 'do', "n't", 'think', 'it', "'s", 'well', '-', 'made', '...']
    """
    return _TOKEN.findall(_TAG.sub(" ", text).replace("’", "'").lower())
