"""From settings to a learner, and which engine can run it."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch

from hamlearn.experiments.run_build import build_learner, build_network
from hamlearn.learner import Learner
from hamlearn.sample import Sample
from hamlearn.serve.settings import Settings

Engine = Literal["eager", "compiled"]


def built(settings: Settings, stream: Any) -> Learner:
    """A learner as the configuration says; each begins with the weights that the seed gives."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng():
        torch.manual_seed(settings.config["run"]["seed"])
        try:
            torch.set_default_dtype(settings.dtype)
            network = build_network(settings.config, stream, settings.classes)
            return build_learner(settings.config, network, late=settings.serve["late"])
        finally:
            torch.set_default_dtype(before)


def warmed(settings: Settings, learner: Learner) -> tuple[Engine, str | None]:
    """The engine that runs the learner, and why it is not the one that was asked for, if so.

    The learner takes two samples, so that what has to be compiled is compiled before the first request comes;
    whoever calls this puts it back.
    """
    asked: Engine = settings.config["learner"]["engine"]
    if asked == "eager":
        return "eager", None
    network = settings.config["network"]
    u = torch.zeros(network["inputs"], dtype=settings.dtype)
    target = torch.zeros(network["outputs"], dtype=settings.dtype)
    if settings.classes is not None:
        target = torch.tensor(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in learner.run([Sample(u, target)] * 2, 2, "compiled"):
            pass
    texts = [str(warning.message) for warning in told]
    reasons = [text for text in texts if text.startswith("engine='compiled'")]
    return ("eager", reasons[0]) if reasons else ("compiled", None)
