"""Many processes and machines, on `torch.distributed`: groups of layers, each on a rank of its own."""

from hamlearn.distributed.checkpoints import load_local
from hamlearn.distributed.learner import PipelineLearner

__all__ = ["PipelineLearner", "load_local"]
