"""Hamiltonian Learning for PyTorch: networks that compute and learn over time, forward only.

The four equations are in `hamlearn.reference`, one a line. `Learner` integrates them.
"""

from hamlearn import cells, checks, errors, local, optim, record, reference, reversible, streams
from hamlearn.credit import Cleared, Echo, Forward
from hamlearn.evaluate import evaluate
from hamlearn.hyper import Hyper
from hamlearn.integrators import RK4, Euler, Heun
from hamlearn.learner import Learner, Population, PopulationReport
from hamlearn.networks import Network
from hamlearn.state import Label, Sample, State, StepReport

__version__ = "0.1.0"

__all__ = [
    "RK4",
    "Cleared",
    "Echo",
    "Euler",
    "Forward",
    "Heun",
    "Hyper",
    "Label",
    "Learner",
    "Network",
    "Population",
    "PopulationReport",
    "Sample",
    "State",
    "StepReport",
    "cells",
    "checks",
    "errors",
    "evaluate",
    "local",
    "optim",
    "record",
    "reference",
    "reversible",
    "streams",
]
