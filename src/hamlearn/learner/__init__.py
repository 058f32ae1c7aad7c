"""The learner: it reads a stream, takes or rejects each sample, reports it, and is saved; and many at once."""

from hamlearn.learner.learner import Learner
from hamlearn.learner.population import AgentsReport, Population, PopulationReport

__all__ = ["AgentsReport", "Learner", "Population", "PopulationReport"]
