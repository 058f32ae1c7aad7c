"""The compiled engine: the step that the eager engine takes, recorded as a graph and run in whole blocks."""

from hamlearn.engines.recorded.eager_reference import EagerReference, ReferenceStep
from hamlearn.engines.recorded.echo_engine import EchoEngine, Passed, Stretch
from hamlearn.engines.recorded.engine import BlockResult, Engine, Pace, named
from hamlearn.engines.recorded.member_control import LEFT, SKIPPED, TAKEN, MemberControl
from hamlearn.engines.recorded.trace import Watch
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
