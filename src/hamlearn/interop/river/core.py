"""What the estimators share: a learner that is built when it is first needed, and time stamps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hamlearn.credit import Forward
from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.networks import Network
from hamlearn.state import Sample

NETS = ("linear", "mlp", "rnn", "gru")


class Core:
    """A learner over vectors of fixed sizes, with the clock of its stream.

    Args:
        sizes: Entries of the input and of the output.
        loss: L(y, target).
        net: One of `NETS`.
        hidden: Neurons.
        rates: τ, η and β.
        unit: Seconds (or units of numeric stamps) that count as 1.
        seed: Of the weights.
    """

    def __init__(
        self,
        sizes: tuple[int, int],
        loss: Any,
        net: str,
        hidden: int,
        rates: tuple[float, float, float],
        unit: float,
        seed: int,
    ) -> None:
        self._made_of = (sizes, loss, net, hidden, rates, unit, seed)
        tau, eta, beta = rates
        self._unit = unit
        self._last: float | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = make_network(net, sizes, hidden)
        hyper = Hyper(tau=tau, eta=eta, beta=beta)
        self.learner = Learner(network, loss, hyper, order="sequential", credit=Forward())

    def learn(self, u: list[float], target: torch.Tensor, t: Any) -> None:
        """One step."""
        tau = self._tau(t)
        self.learner.step(Sample(torch.tensor(u), target, tau))
        if t is not None:
            self._last = _seconds(t)

    def predict(self, u: list[float], t: Any) -> list[float]:
        """The output; nothing moves."""
        y: list[float] = self.learner.predict(torch.tensor(u), tau=self._tau(t)).double().tolist()
        return y

    def _tau(self, t: Any) -> float | None:
        if t is None or self._last is None:
            return None
        passed = (_seconds(t) - self._last) / self._unit
        if not passed > 0:
            raise SampleError(
                f"t={t!r} does not come after the sample before, by {passed:g} units of time. "
                "Sort the data by time, or leave t out."
            )
        return passed

    def __getstate__(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "learner"
            self.learner.save(path)
            return {"made_of": self._made_of, "last": self._last, "learner": path.read_bytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])  # type: ignore[misc]
        self._last = state["last"]
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
            path = Path(folder) / "learner"
            path.write_bytes(state["learner"])
            self.learner.load(path)


def make_network(net: str, sizes: tuple[int, int], hidden: int) -> Network:
    """A network whose first output is 0: before it has learned, it adds nothing to the mean."""
    if net not in NETS:
        raise ConfigError(f"net={net!r} is not known. Give one of {', '.join(NETS)}.")
    inputs, outputs = sizes
    readout = nn.Linear(inputs if net == "linear" else hidden, outputs)
    nn.init.zeros_(readout.weight)
    nn.init.zeros_(readout.bias)
    if net == "linear":
        return Network.feedforward(readout)
    if net == "mlp":
        return Network.feedforward(nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), readout))
    cell = nn.RNNCell(inputs, hidden) if net == "rnn" else nn.GRUCell(inputs, hidden)
    return Network.recurrent(cell, readout)


def _seconds(t: Any) -> float:
    return t.timestamp() if hasattr(t, "timestamp") else float(t)
