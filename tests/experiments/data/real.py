"""Where the real data sets are, on machines that have them."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("HAMLEARN_DATA", Path(__file__).parents[4] / "shared" / "data"))
needs_mnist = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="no MNIST: set HAMLEARN_DATA to a folder that holds mnist/*.gz"
)
needs_imdb = pytest.mark.skipif(
    not ((DATA / "imdb").is_dir() and (DATA / "glove").is_dir()),
    reason="no IMDb: set HAMLEARN_DATA to a folder that holds imdb/ and glove/",
)
