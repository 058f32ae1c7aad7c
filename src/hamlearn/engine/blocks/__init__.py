"""Blocks of samples: planned, taken at once, and reported one by one."""
