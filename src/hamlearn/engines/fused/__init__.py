"""Ticks of a chain of layers on a GPU: one kernel a run of equal layers, many ticks in one CUDA graph."""

from hamlearn.engines.fused.fit import fit, unavailable
from hamlearn.engines.fused.runner import FusedRunner

__all__ = ["FusedRunner", "fit", "unavailable"]
