"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.engine.recorded.eager_reference import EagerReference, Groups, ReferenceStep, weights_kept
from hamlearn.engine.recorded.echo import EchoEngine
from hamlearn.engine.recorded.engine import BlockResult, Engine, HeldTensors, Pace
from hamlearn.engine.recorded.recorder import named
from hamlearn.engine.recorded.trace import NORM, Watch
from hamlearn.loops import UnsupportedError

__all__ = [
    "NORM",
    "BlockResult",
    "EagerReference",
    "EchoEngine",
    "Engine",
    "Groups",
    "HeldTensors",
    "Pace",
    "ReferenceStep",
    "UnsupportedError",
    "Watch",
    "named",
    "weights_kept",
]
