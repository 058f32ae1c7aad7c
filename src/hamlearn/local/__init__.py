"""Local learning: every node, layer or neuron computes and learns in every tick, from its neighbours alone."""

from hamlearn.local.graph import Graph
from hamlearn.local.learner import LocalLearner
from hamlearn.local.neurons import Neurons
from hamlearn.local.residual import Residual

__all__ = ["Graph", "LocalLearner", "Neurons", "Residual"]
