"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.engines.recorded.echo_engine import EchoEngine, Passed, Stretch
from hamlearn.engines.recorded.engine import Engine, Pace, Ran, named
from hamlearn.engines.recorded.guard import LEFT, SKIPPED, TAKEN, Guard
from hamlearn.engines.recorded.trace import Watch
from hamlearn.engines.recorded.tried import Trial, Tried
from hamlearn.loops import UnsupportedError

__all__ = [
    "LEFT",
    "SKIPPED",
    "TAKEN",
    "EchoEngine",
    "Engine",
    "Guard",
    "Pace",
    "Passed",
    "Ran",
    "Stretch",
    "Trial",
    "Tried",
    "UnsupportedError",
    "Watch",
    "named",
]
