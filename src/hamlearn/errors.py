"""What can go wrong, by name.

Every message says which value is wrong, why, and what to do about it. A learner that raises one of
these is exactly as it was before the call.
"""


class HamlearnError(Exception):
    """Base of all errors that hamlearn raises on purpose.

    What to do: catch it to separate errors of hamlearn from faults of a program; the message names the remedy.

    Example:
        >>> import hamlearn as hl
        >>> try:
        ...     hl.Hyper(beta=-1.0)
        ... except hl.errors.HamlearnError as error:
        ...     print(type(error).__name__)
        ConfigError
    """


class ConfigError(HamlearnError, ValueError):
    """A learner, network or hyper-parameter was put together in a way that cannot work.

    What to do: change the argument or the key that the message names; nothing has been built or run yet.

    Example:
        >>> import hamlearn as hl
        >>> hl.Echo(every=0)
        Traceback (most recent call last):
        ...
        hamlearn.errors.ConfigError: every=0 must be a whole number of tokens, at least 1, or None
    """


class SampleError(HamlearnError, ValueError):
    """A sample does not fit: its shape, the kind of its target, or its time step.

    What to do: look at the sample that the message names. The learner is as it was before it, so that you may skip
    it; for tables, `bad="skip"` does so.

    Example:
        >>> import torch, hamlearn as hl
        >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(2, 1)), torch.nn.functional.mse_loss)
        >>> try:
        ...     learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1), tau=-1.0))
        ... except hl.errors.SampleError:
        ...     print(learner.state.t)
        0.0
    """


class StreamError(HamlearnError, RuntimeError):
    """A stream broke its promise, for example by ending in the middle of a sequence.

    What to do: fix the source; everything it had sent before was learned from. A live feed that failed is resumed
    from the last checkpoint.

    Example:
        >>> import torch, hamlearn as hl
        >>> network = hl.Network.recurrent(torch.nn.RNNCell(1, 2), torch.nn.Linear(2, 1))
        >>> learner = hl.Learner(network, torch.nn.functional.mse_loss, credit=hl.Echo())
        >>> try:
        ...     list(learner.run([hl.Sample(torch.ones(1, 1), target=torch.ones(1, 1))]))
        ... except hl.errors.StreamError:
        ...     print("it ended in the middle of a sequence")
        it ended in the middle of a sequence
    """


class NonFiniteError(HamlearnError, ArithmeticError):
    """A loss or a costate is infinite or not a number; the last good state is kept.

    What to do: look at the sample; lower β; guard the data by `streams.finite`, or let such steps be undone by
    `hl.Learner(on_nonfinite="skip")`.

    Example:
        >>> import torch, hamlearn as hl
        >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
        >>> try:
        ...     learner.step(hl.Sample(torch.full((1, 1), float("nan")), target=torch.ones(1, 1)))
        ... except hl.errors.NonFiniteError:
        ...     print(learner.state.updates)
        0
    """


class CheckpointError(HamlearnError, ValueError):
    """A checkpoint is truncated, foreign, or belongs to another model; or it cannot be written.

    What to do: load it into a learner that is built as it was when it was saved; `new_hyper=True` accepts other
    rates. A damaged file cannot be repaired: go back to an older one.

    Example:
        >>> import torch, hamlearn as hl
        >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
        >>> try:
        ...     learner.load("nowhere.safetensors")
        ... except hl.errors.CheckpointError:
        ...     print("there is no such file")
        there is no such file
    """


class AuditError(HamlearnError, RuntimeError):
    """A compiled step has led elsewhere than the eager step; the block that was to come has not been taken.

    One step in 64 blocks is compared. A compiled step is a pure function of weights, buffers, state and sample:
    what else it reads (an object, a file, the entries of a dict) is fixed when it is recorded.

    What to do: call `learner.recompile()` after a change of what the step reads, hold the value as a number in an
    attribute of the module or as a buffer, or run with `engine="eager"`.

    Example:
        >>> import hamlearn as hl
        >>> issubclass(hl.errors.AuditError, hl.errors.HamlearnError)
        True
    """


class RankError(HamlearnError, RuntimeError):
    """Another rank died, hangs, cannot be reached or is out of step: the ranks cannot continue together.

    What to do: let torchrun start all ranks again (`--max-restarts`), and `resume` from the last complete
    checkpoint; the message names the rank that failed first.

    Example:
        >>> import hamlearn as hl
        >>> issubclass(hl.errors.RankError, RuntimeError)
        True
    """


class DataError(HamlearnError, ValueError):
    """A file of a data set is missing, damaged, or not the file it should be; nothing of it is used.

    What to do: put the file that the message names into its place, or fetch it again.

    Example:
        >>> import tempfile
        >>> from hamlearn.experiments.data import load
        >>> try:
        ...     load("MNIST", tempfile.mkdtemp())
        ... except DataError:
        ...     print("the folder does not hold MNIST")
        the folder does not hold MNIST
    """


class DownloadError(DataError):
    """A file could not be fetched; what has arrived is kept, and the next try continues from there.

    What to do: run the same command again once the network is back, or save the file by hand where the message
    says.

    Example:
        >>> issubclass(DownloadError, DataError)
        True
    """


REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)
"""What a module or a loss raises where it cannot take its arguments."""


def install(extra: str) -> str:
    """The command that brings an optional dependency, as the README gives it.

    Example:
        >>> install("river")
        'pip install -c constraints.txt ".[river]", in the folder of the sources'
    """
    return f'pip install -c constraints.txt ".[{extra}]", in the folder of the sources'


def shown(value: object, most: int = 80) -> str:
    """A value for a message, cut if it is longer than `most` characters.

    Example:
        >>> shown("a" * 100, most=8)
        "'aaaa..."
    """
    try:
        text = repr(value)
    except (RuntimeError, ValueError):  # too deep, or an integer of too many digits
        text = type(value).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."
