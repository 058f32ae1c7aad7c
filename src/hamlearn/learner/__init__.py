"""The learner and its parts: what it is made of, how it reads a stream, how it is saved; and many at once."""

from hamlearn.learner._learner import Learner
from hamlearn.learner._population import AgentsReport, Population, PopulationReport

__all__ = ["AgentsReport", "Learner", "Population", "PopulationReport"]
