"""Hamiltonian Learning for PyTorch: networks that compute and learn over time, forward only.

The four equations are in `hamlearn.reference`, one per line. `Learner` integrates them.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hamlearn._version import __version__ as __version__

if TYPE_CHECKING:
    from hamlearn import (
        cells,
        checks,
        credit,
        distributed,
        errors,
        estimators,
        local,
        loops,
        optim,
        optimal,
        record,
        reference,
        reversible,
        streams,
    )
    from hamlearn.adaptive import Adaptive
    from hamlearn.credit import Cleared, Credit, Echo, Forward, Sensitivity
    from hamlearn.evaluate import evaluate
    from hamlearn.hyper import Hyper
    from hamlearn.integrators import RK4, Euler, Heun
    from hamlearn.learner import AgentsReport, Learner, Population, PopulationReport
    from hamlearn.network import Network
    from hamlearn.rules.system import Order, Outcome
    from hamlearn.sample import Label, Sample, State, StepReport, Trace

__all__ = [
    "RK4",
    "Adaptive",
    "AgentsReport",
    "Cleared",
    "Credit",
    "Echo",
    "Euler",
    "Forward",
    "Heun",
    "Hyper",
    "Label",
    "Learner",
    "Network",
    "Order",
    "Outcome",
    "Population",
    "PopulationReport",
    "Sample",
    "Sensitivity",
    "State",
    "StepReport",
    "Trace",
    "cells",
    "checks",
    "credit",
    "distributed",
    "errors",
    "estimators",
    "evaluate",
    "local",
    "loops",
    "optim",
    "optimal",
    "record",
    "reference",
    "reversible",
    "streams",
]

_HOMES = {
    "RK4": "integrators",
    "Adaptive": "adaptive",
    "AgentsReport": "learner",
    "Cleared": "credit",
    "Credit": "credit",
    "Echo": "credit",
    "Euler": "integrators",
    "Forward": "credit",
    "Heun": "integrators",
    "Hyper": "hyper",
    "Label": "sample",
    "Learner": "learner",
    "Network": "network",
    "Order": "rules.system",
    "Outcome": "rules.system",
    "Population": "learner",
    "PopulationReport": "learner",
    "Sample": "sample",
    "Sensitivity": "credit",
    "State": "sample",
    "StepReport": "sample",
    "Trace": "sample",
    "evaluate": "evaluate",
}
"""Modules of the names that are not modules themselves. Each is imported at its first use: `hamlearn --help` uses
none, and does not wait for PyTorch."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hamlearn' has no attribute {name!r}")
    if name not in _HOMES:
        return importlib.import_module(f"hamlearn.{name}")
    value = getattr(importlib.import_module(f"hamlearn.{_HOMES[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package, in which a function that has the name of its module goes before it."""

    def __setattr__(self, name: str, value: Any) -> None:
        # When a module has been imported, Python puts it here under its own name.
        if isinstance(value, ModuleType) and name in _HOMES:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray, joblib and Dask send functions of a script with the modules that they name: this one by its name.
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
