"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.compiled.echo_engine import EchoEngine, Passed, Stretch
from hamlearn.compiled.engine import Engine, Pace, Ran, named
from hamlearn.compiled.guard import LEFT, SKIPPED, TAKEN, Guard
from hamlearn.compiled.trace import Watch
from hamlearn.compiled.tried import Trial, Tried
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
