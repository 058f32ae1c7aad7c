"""Data of the paper's experiments: embedded, official, or from a folder."""

from hamlearn.experiments.data.datasets import Dataset, Name, load
from hamlearn.experiments.data.official import cache_folder, download

__all__ = ["Dataset", "Name", "cache_folder", "download", "load"]
