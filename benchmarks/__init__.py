"""Benchmarks: frozen, seeded workloads whose dated reports are kept. They are no part of the installed package."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Where `python -m benchmarks.…` can be run."""
