"""One door to every data set and every source."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import torch

from hamlearn.errors import ConfigError
from hamlearn.experiments.data import _embedded, _folder, _official
from hamlearn.experiments.data._dataset import Dataset, assemble

Name = Literal["Iris", "MNIST", "IMDb"]
"""What the data sets are called."""

_EMBEDDED = {"Iris": _embedded.iris, "MNIST": _embedded.digits, "IMDb": _embedded.corpus}
_FOLDER = {"MNIST": _folder.mnist, "IMDb": _folder.imdb}
_OFFICIAL = {"MNIST": _official.mnist, "IMDb": _official.imdb}


def load(
    name: Name, source: str | Path = "embedded", *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Dataset:
    """A data set of the paper's experiments, from where you say.

    The samples are always the same; their order is drawn from `seed`, and is the same for every `dtype`.

    Args:
        name: `"Iris"`, `"MNIST"` or `"IMDb"`.
        source: `"embedded"`, which needs no network and says where it stands in for the real thing;
            `"official"`, which downloads to a cache; or a folder that holds `mnist/`, `imdb/` and `glove/`.
            Iris is the real one in each case.
        dtype: Of the inputs: float32 or float64, or another floating type.
        seed: Of the order of the samples.

    Raises:
        ConfigError: No such data set, source or dtype.
        DataError: A file is missing, damaged, or another one than it should be.

    Example:
        >>> data = load("MNIST")
        >>> data.description
        "scikit-learn's digits brought to 28×28, 10 per class (embedded stand-in for MNIST)"
        >>> len(data), data.inputs[0].shape, data.targets[0].shape, data.classes
        (100, torch.Size([1, 1, 28, 28]), torch.Size([1]), 10)
    """
    if name not in get_args(Name):
        raise ConfigError(f"there is no data set {name!r}: choose one of {', '.join(get_args(Name))}")
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype = {dtype} cannot hold the inputs: choose a floating type such as torch.float32")
    if source not in ("embedded", "official") and not Path(source).is_dir():
        raise ConfigError(
            f"source = {str(source)!r} is neither 'embedded' nor 'official' nor a folder that exists"
        )
    if name == "Iris" or source == "embedded":
        raw = _EMBEDDED[name]()
    elif source == "official":
        raw = _OFFICIAL[name]()
    else:
        raw = _FOLDER[name](Path(source))
    return assemble(name, raw, dtype, seed)
