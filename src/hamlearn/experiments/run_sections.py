"""Sections of a configuration that belong to the command itself: what each key means, and what it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator

from hamlearn.experiments.run_types import Words, different

MOST_UNITS, MOST_WEIGHTS = 1_000_000, 100_000_000
"""Neurons in a layer, and weights in a network: more than this command is for."""

Count = Annotated[int, Ge(1)]
Units = Annotated[int, Ge(1), Le(MOST_UNITS)]
Names = Annotated[
    list[str], Len(0, 100), AfterValidator(different), Words("a list of different names of River's metrics")
]


@dataclass(frozen=True)
class Run:
    """The run as a whole.

    Args:
        title: Of the report.
        steps: Samples to learn from; a stream without end needs it.
        seed: Of the weights.
        dtype: Of the weights and of what the stream yields.
        threads: Of PyTorch; left out: as many as PyTorch takes.
        out: The folder that files are written to.
    """

    title: str = "Run"
    steps: Count | None = None
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    threads: Annotated[int, Ge(1), Le(256)] | None = None
    out: str = "out/run"


@dataclass(frozen=True)
class Net:
    """The network, sized by what the stream yields.

    Args:
        kind: A feed-forward net, or the cell of a recurrent one.
        hidden: Neurons; for an `mlp` also a list, one number per layer.
        role: Whether a feed-forward net is the output net or the state net.
        inputs: Entries of an input, where the stream cannot say it.
        outputs: Entries of an output, where the stream cannot say it.
        zero_output: Whether the weights of the last layer start at 0.
    """

    kind: Literal["linear", "mlp", "rnn", "gru", "lstm", "columnar_gru", "rtu", "lru"] = "mlp"
    hidden: Units | Annotated[list[Units], Len(0, 1000)] = 30
    role: Literal["output", "state"] = "output"
    inputs: Units | None = None
    outputs: Units | None = None
    zero_output: bool = False


@dataclass(frozen=True)
class Loss:
    """What is minimised.

    Args:
        kind: The function of PyTorch.
    """

    kind: Literal["mse", "l1", "huber", "cross_entropy"] = "mse"


@dataclass(frozen=True)
class Pipeline:
    """The learner over several processes.

    Args:
        pipeline: Groups of layers, one for each rank under `torchrun`; left out: one process learns alone.
    """

    pipeline: Annotated[int, Ge(1), Le(1000)] | None = None


@dataclass(frozen=True)
class Records:
    """What is kept of the run.

    Args:
        every: Samples from one row of the record to the next.
        windows: Samples that a row sums up, in place of `every`.
        metrics: Of River, scored before each sample is learned.
        metric_window: Samples of a second score, over the newest alone.
        tensorboard: Whether to write for TensorBoard too.
        report: Whether to write an HTML page at the end.
    """

    every: Count = 50
    windows: Count | None = None
    metrics: Names = ()  # type: ignore[assignment]
    metric_window: Annotated[int, Ge(1), Le(10_000_000)] | None = None
    tensorboard: bool = False
    report: bool = True


@dataclass(frozen=True)
class Checkpoint:
    """When the run is saved.

    Args:
        every: Samples from one checkpoint to the next.
    """

    every: Count = 1000
