"""Synthetic signals: seeded, endless, resumable, and the same on every machine.

A signal x is a forecasting task: the input is x(t), the target x(t + ahead·τ).
"""

from hamlearn.streams.signals.chaos import henon, lorenz, mackey_glass
from hamlearn.streams.signals.tasks import delayed_add
from hamlearn.streams.signals.waves import sinusoids

__all__ = ["delayed_add", "henon", "lorenz", "mackey_glass", "sinusoids"]
