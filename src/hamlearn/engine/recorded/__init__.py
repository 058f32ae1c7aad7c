"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.engine.recorded.echo import EchoEngine
from hamlearn.engine.recorded.recorder import BlockResult, Engine, HeldTensors, Pace, named
from hamlearn.engine.recorded.trace import NORM, EagerReference, Groups, ReferenceStep, Watch, weights_kept
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
