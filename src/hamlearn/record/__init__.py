"""What is kept of a run, and where: in memory, as JSON lines, in TensorBoard, on the screen, as a report."""

from hamlearn.record.divergence import Divergence
from hamlearn.record.jsonl import JsonLines, read
from hamlearn.record.page import html
from hamlearn.record.policies import Every, Last, Policy, Reservoir, Windows
from hamlearn.record.progress import Progress
from hamlearn.record.recorder import Recorder
from hamlearn.record.sinks import Memory, Sink, TensorBoard

__all__ = [
    "Divergence",
    "Every",
    "JsonLines",
    "Last",
    "Memory",
    "Policy",
    "Progress",
    "Recorder",
    "Reservoir",
    "Sink",
    "TensorBoard",
    "Windows",
    "html",
    "read",
]
