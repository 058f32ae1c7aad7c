"""Benchmarks: frozen, seeded workloads whose dated reports are kept. They are not installed with the package."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Where `python -m benchmarks.…` can be run."""
