"""Data sets of the paper's experiments, as samples to be shown one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from hamlearn.errors import ConfigError
from hamlearn.experiments.data import embedded, official
from hamlearn.experiments.data.official import cache_folder, download
from hamlearn.experiments.data.readers import Raw

Name = Literal["Iris", "MNIST", "IMDb"]
"""Names of the data sets."""

_EMBEDDED = {"Iris": embedded.iris, "MNIST": embedded.digits, "IMDb": embedded.reviews}
_OFFICIAL = {"MNIST": official.mnist, "IMDb": official.imdb}


@dataclass(frozen=True)
class Dataset:
    """Samples of batch 1, in the order in which an epoch shows them.

    Attributes:
        name: `"Iris"`, `"MNIST"` or `"IMDb"`: what it is, or what it stands in for.
        description: What it really is, in a few words.
        inputs: u of each sample: Iris [1, 4]; MNIST [1, 1, 28, 28]; IMDb [1, T, 50] with T words.
        targets: The class of each sample, int64, [1].
        classes: Number of classes.

    Example:
        >>> from hamlearn.experiments.data import load
        >>> iris = load("Iris")
        >>> len(iris), iris.classes, iris.inputs[0].shape
        (150, 3, torch.Size([1, 4]))
    """

    name: str
    description: str
    inputs: list[Tensor]
    targets: list[Tensor]
    classes: int

    def __len__(self) -> int:
        return len(self.targets)


def load(
    name: Name, source: str | Path = "embedded", *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Dataset:
    """Load a data set of the paper's experiments.

    The samples are always the same; their order is drawn from `seed`, and is the same for every `dtype`.

    Args:
        name: `"Iris"`, `"MNIST"` or `"IMDb"`.
        source: `"embedded"`, which needs no network and uses stand-ins for MNIST and IMDb; `"official"`, which
            downloads to a cache; or a folder that holds `mnist/`, `imdb/` and `glove/`. Iris is always real.
        dtype: Floating-point type of the inputs.
        seed: Of the order of the samples.

    Raises:
        ConfigError: No such data set, source or dtype.
        DataError: A file is missing, or its checksum is wrong.

    Example:
        >>> data = load("MNIST")
        >>> data.description
        "scikit-learn's digits brought to 28×28, 10 per class (embedded stand-in for MNIST)"
        >>> len(data), data.inputs[0].shape, data.targets[0].shape, data.classes
        (100, torch.Size([1, 1, 28, 28]), torch.Size([1]), 10)
    """
    if name not in get_args(Name):
        raise ConfigError(f"name={name!r} is not a data set: give one of {', '.join(get_args(Name))}")
    if not dtype.is_floating_point:
        raise ConfigError(
            f"dtype={dtype} cannot hold the inputs: give a floating-point type such as torch.float32"
        )
    if source not in ("embedded", "official") and not Path(source).is_dir():
        raise ConfigError(
            f"source={str(source)!r} is neither 'embedded' nor 'official' nor an existing folder: give one of them"
        )
    if name == "Iris" or source == "embedded":
        return _dataset(name, _EMBEDDED[name](), dtype, seed)
    folder = download(name, cache_folder()) if source == "official" else Path(source)
    return _dataset(name, _OFFICIAL[name](folder), dtype, seed)


def _dataset(name: str, raw: Raw, dtype: torch.dtype, seed: int) -> Dataset:
    """Samples of `raw` in an order drawn from `seed`, converted to `dtype`."""
    order = torch.randperm(len(raw.labels), generator=torch.Generator().manual_seed(seed)).tolist()
    inputs = [raw.values[i].to(dtype)[None] for i in order]
    targets = [torch.tensor([raw.labels[i]]) for i in order]
    return Dataset(name, raw.description, inputs, targets, raw.classes)
