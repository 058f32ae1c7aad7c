"""The eager engine: one sample at a time, taken as a whole or not at all."""
