"""Data of the paper's experiments: embedded, official, or from a folder."""

from hamlearn.experiments.data._dataset import Dataset
from hamlearn.experiments.data._download import Remote
from hamlearn.experiments.data._files import Checksum
from hamlearn.experiments.data._load import Name, load
from hamlearn.experiments.data._official import OFFICIAL, Places, cache_folder, download

__all__ = ["OFFICIAL", "Checksum", "Dataset", "Name", "Places", "Remote", "cache_folder", "download", "load"]
