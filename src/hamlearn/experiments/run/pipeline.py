"""`hamlearn run` under torchrun: the network of a file as a pipeline over all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from hamlearn.distributed import PipelineLearner
from hamlearn.experiments.run.build import LOSSES, build_hyper, build_network
from hamlearn.experiments.run.config import Config
from hamlearn.experiments.run.keys import named_as, not_allowed
from hamlearn.record._whole import write_text
from hamlearn.streams import Stream

CHECKPOINTS = "checkpoints"


@contextmanager
def job() -> Iterator[None]:
    """Be a rank of the job that torchrun started, if it did."""
    started = "RANK" in os.environ and not dist.is_initialized()
    if started:
        dist.init_process_group("gloo")
    try:
        yield
        if started:
            # The slowest rank still needs what the others sent.
            dist.barrier()
    finally:
        if started:
            dist.destroy_process_group()


def check(config: Config) -> None:
    """Refuse settings that a pipeline does not have, by their names in the file."""
    network, learner = config["network"], config["learner"]
    if network["kind"] not in ("linear", "mlp") or network["role"] != "output":
        why = 'It splits layers in a row. Use network.kind = "mlp" with role = "output", or leave it out.'
        raise not_allowed("learner.pipeline", learner["pipeline"], why)
    for key, allowed in (("credit", "cleared"), ("engine", "auto"), ("on_nonfinite", "raise")):
        if learner[key] not in (allowed, "eager"):
            raise not_allowed(f"learner.{key}", learner[key], f'A pipeline has "{allowed}" only.')
    if config["records"]["metrics"]:
        raise not_allowed("records.metrics", config["records"]["metrics"], "A pipeline keeps losses only.")


def run(config: Config, stream: Stream, classes: int | None, folder: Path) -> dict[str, Any]:
    """Run the pipeline to its end, from the last checkpoint in `folder` on if there is one.

    The last rank writes `result.json`, with the mean loss of the samples that became complete in this run.
    """
    check(config)
    module = build_network(config, stream, classes).output
    # As many nodes as there are layers with weights: an activation belongs to the layer before it.
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    pairs = [nn.Sequential(*layers[i : i + 2]) for i in range(0, len(layers), 2)]
    with named_as("learner", config["learner"]):
        learner = PipelineLearner(
            nn.Sequential(*pairs),
            LOSSES[config["loss"]["kind"]],
            build_hyper(config),
            groups=config["learner"]["pipeline"],
            align=True,
            order=config["learner"]["order"],
            ticks_per_message=config["learner"]["ticks_per_message"],
        )
    learner.resume(folder / CHECKPOINTS)
    steps = config["run"]["steps"]
    left = None if steps is None else max(steps - learner.position, 0)
    every = config["checkpoint"]["every"]
    reports = learner.run(stream, left, resume=True, save_to=folder / CHECKPOINTS, save_every=every)
    losses = [float(report.loss) for report in reports if report.loss is not None]
    learner.save(folder / CHECKPOINTS, keep=2)
    result = {"steps": learner.position, "loss": sum(losses) / len(losses) if losses else None}
    if learner.rank == learner.ranks - 1:
        write_text(folder / "result.json", json.dumps(result, indent=1) + "\n")
    return result
