"""Local rules as they are run: one tick at a time, or blocks of recorded ticks in one loop."""
