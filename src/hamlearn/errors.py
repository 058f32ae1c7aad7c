"""What can go wrong, by name.

Every message says which value is wrong, why, and what to do about it. A learner that raises one of
these is exactly as it was before the call.
"""


class HamlearnError(Exception):
    """Base of all errors that hamlearn raises on purpose."""


class ConfigError(HamlearnError, ValueError):
    """A learner, network or hyper-parameter was put together in a way that cannot work."""


class SampleError(HamlearnError, ValueError):
    """A sample does not fit: its shape, the kind of its target, or its time step."""


class StreamError(HamlearnError, RuntimeError):
    """A stream broke its promise, for example by ending in the middle of a sequence."""


class NonFiniteError(HamlearnError, ArithmeticError):
    """A loss or a costate is infinite or not a number; the last good state is kept."""


class CheckpointError(HamlearnError, ValueError):
    """A checkpoint is truncated, foreign, or belongs to another model."""


class RankError(HamlearnError, RuntimeError):
    """Another rank died, hangs, cannot be reached or is out of step: the ranks cannot go on together."""


class DataError(HamlearnError, ValueError):
    """A file of a data set is missing, damaged, or not the file it should be; nothing of it is used."""


class DownloadError(DataError):
    """A file could not be fetched; what has arrived is kept, and the next try goes on from there."""


REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)
"""What a module or a loss raises where it cannot take its arguments."""
