"""Many processes and machines, on `torch.distributed`: groups of layers, or slices of a population, on ranks."""

from hamlearn.distributed.checkpoints import load_local
from hamlearn.distributed.learner import PipelineLearner
from hamlearn.distributed.population import ShardedPopulation, ShardedReport

__all__ = ["PipelineLearner", "ShardedPopulation", "ShardedReport", "load_local"]
