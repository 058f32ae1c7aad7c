"""One training run: what determines it, and doing it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

import torch

from hamlearn._base import machine
from hamlearn.errors import ConfigError
from hamlearn.experiments.comparison import Data, Run, train_hl, train_sgd
from hamlearn.experiments.data import Dataset, load
from hamlearn.experiments.models import MODELS, TOKEN_MODELS, Implementation, Model
from hamlearn.experiments.scenarios import Scenario

Part = Literal["paper", "drawn", "tokens"]
"""The paper's cells; settings of the optimizer drawn at random; sequences read token by token."""


@dataclass(frozen=True)
class Job:
    """A model trained in one way, and everything that the outcome depends on.

    Attributes:
        part: Which table it belongs to.
        how: `"SGD"`, or how Hamiltonian Learning takes the model.
        source: Where the data come from; the outcome depends on `fingerprint` alone.
        samples: Only so many samples; `None` for all.
        length: Only so many tokens of each review; `None` for all.
    """

    part: Part
    model: str
    scenario: Scenario
    how: str
    dtype: str
    epochs: int
    seed: int
    source: str
    data: str
    samples: int | None = None
    length: int | None = None
    fingerprint: str = ""

    def on(self, data: Dataset) -> Job:
        """The same job, bound to these very data."""
        return replace(self, fingerprint=data.fingerprint)

    def beside(self, how: str) -> Job:
        """The same job done in another way."""
        return replace(self, how=how)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the outcome depends on; where the data lie does not matter."""
        return {**{k: v for k, v in asdict(self).items() if k != "source"}, **environment()}

    @property
    def name(self) -> str:
        """A file name that no other job has: readable, and with a digest of the identity."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        parts = (self.part, self.model, self.scenario.name, self.how, self.dtype, digest)
        return "_".join(parts).replace("/", "+").replace(" ", "-")

    def run(self) -> Run:
        """Train."""
        data = _load(self.data, self.source, self.dtype, self.seed)
        if data.fingerprint != self.fingerprint:
            raise ConfigError(f"the data in {self.source} changed while they were in use: start again")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = self._model().make(data.classes).to(getattr(torch, self.dtype))
        if self.how == "SGD":
            return train_sgd(module, self._pairs(data), self.epochs, self.scenario)
        how = cast(Implementation, self.how)
        return train_hl(module, self._pairs(data), self.epochs, self.scenario, how)

    def _model(self) -> Model:
        return (TOKEN_MODELS if self.part == "tokens" else MODELS)[self.model]

    def _pairs(self, data: Dataset) -> Data:
        pairs = list(zip(data.inputs, data.targets, strict=True))[: self.samples]
        if self.length is not None and self.data == "IMDb":
            pairs = [(u[:, : self.length], target) for u, target in pairs]
        return pairs


def environment() -> dict[str, str]:
    """What else bits depend on: versions, and the processor's kind."""
    known = machine.versions()
    return {"hamlearn": known["hamlearn"], "torch": known["torch"], "machine": machine.kind()}


@lru_cache
def _load(name: Any, source: str, dtype: str, seed: int) -> Dataset:
    return load(name, source, dtype=getattr(torch, dtype), seed=seed)
