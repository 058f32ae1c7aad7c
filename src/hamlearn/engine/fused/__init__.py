"""Ticks of a chain of layers on a GPU: one kernel a run of equal layers, many ticks in one CUDA graph."""

from hamlearn.engine.fused.fit import fit, unavailable
from hamlearn.engine.fused.runner import FusedRunner

__all__ = ["FusedRunner", "fit", "unavailable"]
