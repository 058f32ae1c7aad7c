"""Test-then-train: predict, score, and only then learn."""

from hamlearn.evaluate.evaluation import Evaluation, evaluate, scored
from hamlearn.evaluate.scores import Scores

__all__ = ["Evaluation", "Scores", "evaluate", "scored"]
