"""Where samples come from: data sets, sequences, files, signals, and feeds that never stop."""

from hamlearn.streams import signals
from hamlearn.streams.anything import from_any
from hamlearn.streams.base import Stream
from hamlearn.streams.combine import delayed, hold, interleave, map, take
from hamlearn.streams.conformance import check
from hamlearn.streams.datasets import from_dataset
from hamlearn.streams.guards import clip_tau, finite
from hamlearn.streams.iterables import from_iterable
from hamlearn.streams.lagged import autoregress
from hamlearn.streams.live import live, mqtt, redis, websocket
from hamlearn.streams.sequences import from_sequences
from hamlearn.streams.standardized import standardize
from hamlearn.streams.tables import csv, from_rows
from hamlearn.streams.timed import timed
from hamlearn.streams.values import Spec, TensorSpec

__all__ = [
    "Spec",
    "Stream",
    "TensorSpec",
    "autoregress",
    "check",
    "clip_tau",
    "csv",
    "delayed",
    "finite",
    "from_any",
    "from_dataset",
    "from_iterable",
    "from_rows",
    "from_sequences",
    "hold",
    "interleave",
    "live",
    "map",
    "mqtt",
    "redis",
    "signals",
    "standardize",
    "take",
    "timed",
    "websocket",
]
