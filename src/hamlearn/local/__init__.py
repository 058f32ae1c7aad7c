"""Local learning: every node, layer or neuron computes and learns in every tick, from its neighbours alone."""

from hamlearn.local.learner import LocalLearner
from hamlearn.rules.local.graph import Graph
from hamlearn.rules.local.neurons import Neurons
from hamlearn.rules.local.residual import Residual

__all__ = ["Graph", "LocalLearner", "Neurons", "Residual"]
