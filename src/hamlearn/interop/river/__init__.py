"""The estimators without settings as River models, and River's data sets as streams (extra `river`)."""

from hamlearn.errors import install

try:
    import river as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"hamlearn.interop.river needs River: {install('river')}", name="river") from error

from hamlearn.interop.river.mixtures import MixtureClassifier, MixtureForecaster, MixtureRegressor
from hamlearn.interop.river.stream import from_river

__all__ = ["MixtureClassifier", "MixtureForecaster", "MixtureRegressor", "from_river"]
