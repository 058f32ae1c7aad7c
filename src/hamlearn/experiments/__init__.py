"""Experiments: the paper's own, and studies of what it leaves open."""
