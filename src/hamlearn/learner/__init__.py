"""The learner and its parts: what it is made of, how it reads a stream, how it is saved."""

from hamlearn.learner._learner import Learner

__all__ = ["Learner"]
