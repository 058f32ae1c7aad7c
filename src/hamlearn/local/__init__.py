"""Local learning: every node, layer or neuron computes and learns in every tick, from its neighbours alone."""

from hamlearn.local.learner import LocalLearner
from hamlearn.rules.local.graph import Graph, Residual
from hamlearn.rules.local.neurons import Neurons

__all__ = ["Graph", "LocalLearner", "Neurons", "Residual"]
