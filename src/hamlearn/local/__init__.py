"""Local learning: every node, layer or neuron computes and learns in every tick, from its neighbours alone."""

from hamlearn.local.learner import LocalLearner
from hamlearn.orders.local.graph import Graph
from hamlearn.orders.local.neurons import Neurons
from hamlearn.orders.local.residual import Residual

__all__ = ["Graph", "LocalLearner", "Neurons", "Residual"]
