"""All that a learner is between two samples, as a value: its checkpoint, its replay, its undo."""
