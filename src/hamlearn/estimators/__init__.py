"""Estimators without settings: classes and numbers from a stream of rows, learned as they come."""

from hamlearn.estimators.classifier import Classifier
from hamlearn.estimators.forecaster import Forecaster
from hamlearn.estimators.regressor import Regressor

__all__ = ["Classifier", "Forecaster", "Regressor"]
