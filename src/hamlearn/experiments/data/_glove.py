"""Reader of GloVe's word vectors: a word and its numbers on each line, parted by single blanks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from hamlearn.errors import DataError
from hamlearn.experiments.data._files import reading

SIZE = 50


def read_vectors(path: str | Path, words: Collection[str], size: int = SIZE) -> dict[str, Tensor]:
    r"""The vectors (float64) of those `words` that the file has; every line is checked, wanted or not.

    Args:
        path: A text file in GloVe's form, plain or `.gz`.
        words: Whose vectors are wanted.
        size: Numbers per word.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tiny.txt"
        >>> _ = path.write_text("good 1 0.5\nbad -1 0.25\n")
        >>> read_vectors(path, {"good", "unheard"}, size=2)
        {'good': tensor([1.0000, 0.5000], dtype=torch.float64)}
    """
    path = Path(path)
    wanted = {word.encode() for word in words}
    vectors: dict[str, Tensor] = {}
    with reading(path) as file:
        # By line feeds alone: some of GloVe's words hold characters that Unicode counts as line ends.
        for number, line in enumerate(file, start=1):
            word, *values = line.rstrip(b"\n").split(b" ")
            if len(values) != size:
                raise DataError(
                    f"{path}, line {number} holds {len(values)} numbers after its word where {size} are expected: "
                    "fetch the file again"
                )
            try:
                name, vector = word.decode(), [float(value) for value in values] if word in wanted else []
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: its word is not UTF-8 ({error})") from error
            except ValueError as error:
                raise DataError(f"{path}, line {number}: not a number ({error})") from error
            if word in wanted:
                vectors[name] = torch.tensor(vector, dtype=torch.float64)
                if not vectors[name].isfinite().all():
                    raise DataError(f"{path}, line {number}: a number of {name!r} is not finite")
    return vectors
