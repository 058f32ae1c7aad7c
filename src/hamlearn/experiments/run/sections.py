"""Sections of a configuration that belong to the command itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Run:
    """The run as a whole.

    Args:
        title: Of the report.
        steps: Samples to learn from; an endless stream needs it.
        seed: Of the weights.
        dtype: Of the weights and of what the stream yields.
        threads: Of PyTorch; if left out, as many as PyTorch takes.
        out: The folder for results, relative to the folder of this file.
    """

    title: str = "Run"
    steps: Count | None = None
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 0
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
        inputs: Entries of an input, if the stream cannot say it.
        outputs: Entries of an output, if the stream cannot say it.
        zero_output: Whether the weights of the last layer start at 0.
    """

    kind: Literal["linear", "mlp", "rnn", "gru", "lstm", "columnar_gru", "rtu", "lru"] = "mlp"
    hidden: Count | list[Count] = 30
    role: Literal["output", "state"] = "output"
    inputs: Count | None = None
    outputs: Count | None = None
    zero_output: bool = False


@dataclass(frozen=True)
class Loss:
    """The loss that is minimised.

    Args:
        kind: A loss of PyTorch.
    """

    kind: Literal["mse", "l1", "huber", "cross_entropy"] = "mse"


@dataclass(frozen=True)
class Records:
    """Records of the run.

    Args:
        every: Samples from one row of the record to the next.
        metrics: Of River, scored before each sample is learned; if left out, `MAE` or `Accuracy`, by the loss. F1,
            Recall and others that have a positive class count class 1: the second in `stream.classes`.
        metric_window: Samples of a second score, over the newest alone.
        predictions: Format of the table of all predictions.
        tensorboard: Whether to write for TensorBoard too.
        report: Whether to write an HTML page at the end. It shows the rows of the record: a run of fewer than
            `every` samples has none, and no page.
    """

    every: Count = 50
    metrics: list[str] | None = None
    metric_window: Count = 200
    predictions: Literal["csv", "parquet", "none"] = "csv"
    tensorboard: bool = False
    report: bool = True


@dataclass(frozen=True)
class Checkpoint:
    """When the run is saved.

    Args:
        every: Samples from one checkpoint to the next.
    """

    every: Count = 1000
