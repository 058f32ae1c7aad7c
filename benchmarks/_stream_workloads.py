"""Streams and networks for `hamlearn bench stream`: one sample a step, the same start for every contender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.cells import Diagonal
from hamlearn.credit import Cleared, Credit, Forward
from hamlearn.network import Network

Advance = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]
"""(network, u, h) to (y, next h), in the words of a plain PyTorch loop."""


@dataclass(frozen=True)
class Workload:
    """A network, a loss and a stream.

    Attributes:
        name: In tables and reports.
        twin: Name of the same equations in JAX.
        inputs: Size of u.
        network: Makes the network, at random.
        advance: One step forward, without Hamiltonian Learning.
        loss: Of one output and one target.
        classes: Number of classes to tell apart; `None`: a number is to be predicted.
        lr: Learning rate, low enough to stay stable over millions of steps.
        credit: What z carries; nothing but `Cleared()` is what SGD with a detached state does.
    """

    name: str
    twin: str
    inputs: int
    network: Callable[[], Network]
    advance: Advance
    loss: Callable[[Tensor, Tensor], Tensor]
    classes: int | None = None
    lr: float = 1e-3
    credit: Credit = Cleared()  # noqa: RUF009 (frozen)

    @property
    def follows_sgd(self) -> bool:
        """Whether SGD with a detached state learns the very same."""
        return not self.credit.carries


@dataclass(frozen=True)
class Problem:
    """A workload with its start and its samples, one row each."""

    workload: Workload
    network: Network
    u: Tensor
    target: Tensor

    @property
    def steps(self) -> int:
        """Number of samples of one pass."""
        return len(self.u)


MOMENTUM = 0.9


class Readout(nn.Linear):
    """A linear output net that looks at the state alone."""

    def forward(self, u: Tensor, h: Tensor) -> Tensor:  # type: ignore[override]
        """Y."""
        return super().forward(h)


def _mlp(network: Any, u: Tensor, h: Any) -> tuple[Tensor, Any]:
    return network.output(u), ()


def _rnn(network: Any, u: Tensor, h: Any) -> tuple[Tensor, Any]:
    h = network.state(u, h)
    return network.output(h), h


def _lstm(network: Any, u: Tensor, h: Any) -> tuple[Tensor, Any]:
    h = network.state(u, h)
    return network.output(h[0]), h


def _diagonal(network: Any, u: Tensor, h: Any) -> tuple[Tensor, Any]:
    h = h + network.state(u, h)
    return network.output(u, h), h


def _make_mlp() -> Network:
    return Network.feedforward(nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)))


def _make_rnn() -> Network:
    return Network.recurrent(nn.RNNCell(50, 30), nn.Linear(30, 1))


def _make_lstm() -> Network:
    return Network.recurrent(nn.LSTMCell(50, 128), nn.Linear(128, 1))


def _make_diagonal() -> Network:
    return Network(state=Diagonal(50, 512), output=Readout(512, 1), transition="rate")


MSE, CROSS_ENTROPY = nn.functional.mse_loss, nn.functional.cross_entropy
WORKLOADS = [
    Workload("RNN, 30 neurons", "rnn", 50, _make_rnn, _rnn, MSE),
    Workload("MLP 4-30-3", "mlp", 4, _make_mlp, _mlp, CROSS_ENTROPY, classes=3),
    Workload("LSTM, 128 neurons", "lstm", 50, _make_lstm, _lstm, MSE),
    Workload("diagonal, 512 neurons", "diagonal", 50, _make_diagonal, _diagonal, MSE, lr=1e-5),
    Workload(
        "diagonal, 512 neurons, Forward", "diagonal", 50, _make_diagonal, _diagonal, MSE, lr=1e-6, credit=Forward()
    ),
]


def _make_rnn_of(neurons: int) -> Network:
    return Network.recurrent(nn.RNNCell(50, neurons), nn.Linear(neurons, 1))


WIDE = [
    Workload(f"RNN, {n} neurons", "rnn", 50, partial(_make_rnn_of, n), _rnn, MSE, lr=1e-4) for n in (64, 256, 1024)
]
"""Measured on a GPU alone: one block of threads, and several."""


def make_problem(workload: Workload, steps: int, device: str) -> Problem:
    """Draw start and samples; a number to be predicted depends on the input before, a class on the present one."""
    torch.manual_seed(0)
    network = workload.network().to(device)
    u = torch.randn(steps, workload.inputs)
    score = u @ torch.randn(workload.inputs, workload.classes or 1) / workload.inputs**0.5
    target = score.roll(1, 0).tanh() if workload.classes is None else score.argmax(1)
    return Problem(workload, network, u.to(device), target.to(device))
