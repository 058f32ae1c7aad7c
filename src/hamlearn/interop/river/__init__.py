"""Hamiltonian Learning as River estimators, and River's data sets as streams (extra `river`)."""

from hamlearn.errors import install

try:
    import river as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"hamlearn.interop.river needs River: {install('river')}", name="river") from error

from hamlearn.interop.river.estimators import HLClassifier, HLRegressor
from hamlearn.interop.river.forecaster import HLForecaster
from hamlearn.interop.river.mixtures import MixtureClassifier, MixtureForecaster, MixtureRegressor
from hamlearn.interop.river.stream import from_river

__all__ = [
    "HLClassifier",
    "HLForecaster",
    "HLRegressor",
    "MixtureClassifier",
    "MixtureForecaster",
    "MixtureRegressor",
    "from_river",
]
