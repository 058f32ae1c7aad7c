"""The eager engine: one sample at a time, kept or refused as a whole."""
