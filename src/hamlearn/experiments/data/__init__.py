"""Data of the paper's experiments: embedded, official, or from a folder."""

from hamlearn.experiments.data.cache import cache_folder, download
from hamlearn.experiments.data.datasets import Dataset, Name, load

__all__ = ["Dataset", "Name", "cache_folder", "download", "load"]
