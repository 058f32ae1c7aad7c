"""Ticks as one compiled loop: the eager orders, recorded, with all that they hold as tensors of fixed shapes."""

from hamlearn.engines.looped.runner import TickRunner as TickRunner
