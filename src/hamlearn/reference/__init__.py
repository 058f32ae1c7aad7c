"""The equations, one per line with the paper's label. Slow and plain: the judge of every faster path.

Nothing is updated in place and nothing is shared with the fast paths but the network itself. Weights, costates
and state are passed in and out; trees of tensors are walked leaf by leaf.
"""

from hamlearn.reference._echo import echo_sequence
from hamlearn.reference._equations import ReferenceReport, ReferenceState, f_h, f_y, start
from hamlearn.reference._orders import parallel_rates, parallel_step, run, sequential_step
from hamlearn.reference._sensitivity import sensitivity_step

__all__ = [
    "ReferenceReport",
    "ReferenceState",
    "echo_sequence",
    "f_h",
    "f_y",
    "parallel_rates",
    "parallel_step",
    "run",
    "sensitivity_step",
    "sequential_step",
    "start",
]
