"""Benchmarks: frozen, seeded workloads whose dated reports are kept."""
