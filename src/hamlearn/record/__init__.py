"""What is kept of a run, and where: in memory, as files, in experiment trackers, on the screen, as a report."""

from hamlearn.record.jsonl import JsonLines, read
from hamlearn.record.page import html
from hamlearn.record.predictions import Predictions
from hamlearn.record.progress import Progress
from hamlearn.record.recorder import Memory, Recorder, Sink
from hamlearn.record.trackers import TensorBoard, Tracker

__all__ = [
    "JsonLines",
    "Memory",
    "Predictions",
    "Progress",
    "Recorder",
    "Sink",
    "TensorBoard",
    "Tracker",
    "html",
    "read",
]
