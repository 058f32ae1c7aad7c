"""The paper's experiments: every model, scenario and implementation against `torch.optim.SGD`."""

from hamlearn.experiments.reproduce.command import reproduce
from hamlearn.experiments.reproduce.plan import Settings

__all__ = ["Settings", "reproduce"]
