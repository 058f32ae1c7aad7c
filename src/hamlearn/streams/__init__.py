"""Where samples come from: data sets, sequences, files, signals, and feeds that never stop."""

from hamlearn.streams import signals
from hamlearn.streams.base import Spec, Stream, TensorSpec
from hamlearn.streams.combine import finite, hold, map, take
from hamlearn.streams.datasets import from_dataset
from hamlearn.streams.interleaved import interleave
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.live import live
from hamlearn.streams.sequences import from_sequences
from hamlearn.streams.tables import csv
from hamlearn.streams.timed import timed

__all__ = [
    "Spec",
    "Stream",
    "TensorSpec",
    "csv",
    "finite",
    "from_dataset",
    "from_iterable",
    "from_sequences",
    "hold",
    "interleave",
    "live",
    "map",
    "signals",
    "take",
    "timed",
]
