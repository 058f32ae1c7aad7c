"""What the estimators share: a learner that grows with the features, and time stamps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import nn

from hamlearn._base.numbers import as_number
from hamlearn.credit import Cleared, Credit
from hamlearn.errors import ConfigError, SampleError
from hamlearn.hyper import Hyper, Schedule
from hamlearn.interop.river.growth import carry_over
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample
from hamlearn.state import checkpoint
from hamlearn.streams.clock import to_seconds
from hamlearn.streams.values import shown

NETS = ("linear", "mlp", "rnn", "gru")

Module = Callable[[int], nn.Module]
"""From the number of features to a network."""


@dataclass(frozen=True)
class Plan:
    """What a learner is made of, once the number of features is known.

    Args:
        make: From the number of inputs to a module of a vector, or to a `Network`.
        loss: L(y, target).
        hyper: τ, η, β, φ and s.
        credit: What z carries between steps.
        unit: Seconds (or units of numeric stamps) that count as 1.
        seed: Of the weights.
    """

    make: Module
    loss: Any
    hyper: Hyper
    credit: Credit
    unit: float
    seed: int

    def learner(self, inputs: int) -> Learner:
        """A learner of this many inputs; PyTorch's random numbers stay as they are."""
        with torch.random.fork_rng(devices=[]):
            # A seed for each size: weights that are added later are not those of the smaller network again.
            torch.manual_seed(self.seed + inputs)
            made = self.make(inputs)
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"module({inputs}) returned a {type(made).__name__}. Give a function from the number of features "
                "to a torch.nn.Module, for example module=lambda n: torch.nn.Linear(n, 1)."
            )
        network = made if isinstance(made, Network) else Network.feedforward(made)
        return Learner(network, self.loss, self.hyper, credit=self.credit)


class Core:
    """A learner over vectors that may become longer, with the clock of its stream.

    Args:
        plan: What it is made of.
        inputs: Entries of the first vector.
    """

    def __init__(self, plan: Plan, inputs: int) -> None:
        self.plan, self.inputs = plan, inputs
        self._last: float | None = None
        self.learner = plan.learner(inputs)

    def learn(self, u: list[float], target: torch.Tensor, t: Any) -> None:
        """One step, after the network has grown to the length of `u`."""
        if len(u) > self.inputs:
            self.learner = carry_over(self.learner, self.plan.learner(len(u)), torch.tensor(u))
            self.inputs = len(u)
        self.learner.step(Sample(torch.tensor(self._fitted(u)), target, self.tau(t)))
        if t is not None:
            self._last = to_seconds(t, "t")

    def predict(self, u: list[float], t: Any) -> list[float]:
        """The output; nothing moves."""
        y: list[float] = self.learner.predict(torch.tensor(self._fitted(u)), tau=self.tau(t)).double().tolist()
        return y

    @staticmethod
    def require_time(core: Core | None, t: Any) -> None:
        """Refuse a time that cannot be, before anything has moved."""
        if core is not None:
            core.tau(t)
        elif t is not None:
            to_seconds(t, "t")

    def tau(self, t: Any) -> float | None:
        """The time since the last sample that was learned; refuses what does not come after it."""
        if t is None:
            return None
        now = to_seconds(t, "t")
        if self._last is None:
            return None
        passed = (now - self._last) / self.plan.unit
        if not passed > 0:
            raise SampleError(
                f"t={t!r} does not come after the sample before, by {passed:g} units of time. "
                "Sort the data by time, or leave t out."
            )
        return passed

    def _fitted(self, u: list[float]) -> list[float]:
        return u[: self.inputs] + [0.0] * (self.inputs - len(u))

    def __getstate__(self) -> dict[str, Any]:
        # As bytes, which are the same for the same state: two pickles tell whether a model has changed.
        state = checkpoint.to_bytes(self.learner.state_dict())
        return {"plan": self.plan, "inputs": self.inputs, "last": self._last, "learner": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["plan"], state["inputs"])  # type: ignore[misc]
        self._last = state["last"]
        with torch.random.fork_rng(devices=[]):
            self.learner.load_state_dict(checkpoint.from_bytes(state["learner"]))


@dataclass(frozen=True)
class Named:
    """A network by its name, whose first output is 0: before it has learned, it adds nothing to the mean."""

    net: str
    hidden: int
    outputs: int

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        if self.net not in NETS:
            raise ConfigError(f"net={self.net!r} is not known. Give one of {', '.join(NETS)}.")

    def __call__(self, inputs: int) -> Network:
        """The network for so many inputs."""
        readout = nn.Linear(inputs if self.net == "linear" else self.hidden, self.outputs)
        nn.init.zeros_(readout.weight)
        nn.init.zeros_(readout.bias)
        if self.net == "linear":
            return Network.feedforward(readout)
        if self.net == "mlp":
            first = nn.Linear(inputs, self.hidden)
            with torch.no_grad():
                # PyTorch draws within 1/sqrt(n). Twice that gives neurons that see standardized features as
                # numbers of about size 1, where tanh bends; smaller ones begin as a linear model and are slow to
                # become another.
                first.weight.mul_(2)
                first.bias.mul_(2)
            return Network.feedforward(nn.Sequential(first, nn.Tanh(), readout))
        cell = (nn.RNNCell if self.net == "rnn" else nn.GRUCell)(inputs, self.hidden)
        return Network.recurrent(cell, readout)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, of Python's or NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least so many."""
    if not is_whole(value) or value < least:
        raise ConfigError(f"{name}={value!r} is no number of places. Give a whole number of at least {least}.")


def _takes_a_number(make: Any) -> bool:
    """Whether it can be called with the number of features; a module that is already made wants a tensor."""
    if not callable(make) or isinstance(make, nn.Module):
        return False
    try:
        inspect.signature(make).bind(1)
    except TypeError:
        return False
    except ValueError:
        # It does not tell what it takes: the call will.
        return True
    return True


def make_plan(
    make: Module,
    loss: Any,
    lr: float | Schedule,
    rates: tuple[float | Schedule | None, float, Hyper | None],
    credit: Credit | None,
    unit: float,
    seed: int,
) -> Plan:
    """What an estimator was told, as a plan.

    Args:
        make: The network.
        loss: L(y, target).
        lr: The learning rate where none is given.
        rates: `lr`, `momentum` and `hyper`, as the estimator was given them.
        credit: `None` is `Cleared()`.
        unit: What counts as one unit of time.
        seed: Of the weights.
    """
    given, momentum, hyper = rates
    if hyper is not None and (given is not None or momentum):
        raise ConfigError(
            f"hyper says how fast to learn, and so do lr={given!r} and momentum={momentum!r}. Give hyper alone, "
            "or lr and momentum alone."
        )
    if hyper is None:
        hyper = Hyper.from_sgd(lr=lr if given is None else given, momentum=momentum)
    if not 0 < as_number(unit) < math.inf:
        raise ConfigError(f"unit={unit!r} is no length of time. Give a number above 0, in seconds for datetimes.")
    if not _takes_a_number(make):
        raise ConfigError(
            f"module={shown(make)} is no function of the number of features alone that returns a torch.nn.Module. "
            "Give one, as in module=lambda n: torch.nn.Linear(n, 2) for two outputs."
        )
    if not is_whole(seed):
        raise ConfigError(f"seed={seed!r} is no whole number. Give one.")
    return Plan(make, loss, hyper, Cleared() if credit is None else credit, unit, seed)
