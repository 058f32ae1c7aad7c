"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.engine.recorded.eager_reference import EagerReference, ReferenceStep
from hamlearn.engine.recorded.echo_engine import EchoEngine, Passed, Stretch
from hamlearn.engine.recorded.engine import BlockResult, Engine, Pace, named
from hamlearn.engine.recorded.member_control import LEFT, SKIPPED, TAKEN, MemberControl
from hamlearn.engine.recorded.trace import Watch
from hamlearn.loops import UnsupportedError

__all__ = [
    "LEFT",
    "SKIPPED",
    "TAKEN",
    "BlockResult",
    "EagerReference",
    "EchoEngine",
    "Engine",
    "MemberControl",
    "Pace",
    "Passed",
    "ReferenceStep",
    "Stretch",
    "UnsupportedError",
    "Watch",
    "named",
]
