"""Hamiltonian Learning in the terms of other libraries."""
