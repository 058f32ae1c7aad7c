"""Synthetic tasks that test credit over time, and the rules that are compared on them."""
