"""One rank of a pipeline that faults befall: run by torchrun, it resumes from the last complete checkpoint."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import hamlearn as hl
from benchmarks._faults import fill_disk, strike
from hamlearn.distributed import PipelineLearner

AHEAD = 200
"""Samples from the one at which the first rank is asked to stop to the end: ranks differ by fewer."""


def network() -> nn.Sequential:
    """Eight small layers."""
    torch.manual_seed(0)
    sizes = (8, 16, 16, 16, 16, 16, 16, 16, 4)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)))


class Source:
    """A seeded stream with its place as state, at a pace, with the faults that befall the rank that reads it."""

    def __init__(self, count: int, pace: float = 0.0, plan: Path | None = None, place: int = 0) -> None:
        self.count, self.pace, self.plan, self.place, self.position = count, pace, plan, place, 0

    def __iter__(self) -> Iterator[hl.Sample]:
        while self.position < end_of(self):
            if self.pace:
                time.sleep(self.pace)
            kind = None if self.plan is None else due(self.plan, self.place, self.position)
            if kind is not None:
                strike(kind)
            u = torch.randn(4, 8, generator=torch.Generator().manual_seed(self.position))
            self.position += 1
            yield hl.Sample(u, None if self.position % 9 == 4 else torch.tanh(u[:, :4]))

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def end_of(source: Source) -> int:
    """How many samples the stream has; where its end is asked for, one that both ranks have yet to come to."""
    if source.plan is None:
        return source.count
    end = source.plan / "end"
    if source.place == 0 and not end.exists() and (source.plan / "stop").exists():
        told = end.with_suffix(".new")
        told.write_text(str(source.position + AHEAD))
        told.rename(end)
    return int(end.read_text()) if end.exists() else source.count


def due(plan: Path, place: int, done: int) -> str | None:
    """The next fault that is planned, if it is this rank's turn and time; each strikes once, in any life."""
    faults = sorted(plan.glob("*.fault"))
    for path in faults[:1]:
        try:
            fault = json.loads(path.read_text())
        except FileNotFoundError:  # it has struck the other rank in this very moment
            return None
        if fault["rank"] == place and done >= fault["sample"]:
            path.rename(path.with_suffix(".struck"))
            return str(fault["kind"])
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # torchrun ends all ranks when one has died; each is to find out by itself, and to say so, before it is killed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    place, folder = dist.get_rank(), options.folder
    try:
        with (folder / f"lives-{place}.txt").open("a") as lives:
            lives.write(f"{os.getpid()}\n")
        learner = PipelineLearner(
            network(),
            nn.functional.mse_loss,
            hl.Hyper(eta=0.5, eta_z=0.0),
            align=True,
            timeout=options.timeout,
        )
        learner.resume(folder / "checkpoints")
        ends = place in (0, learner.ranks - 1)
        stream = Source(options.samples, options.pace, folder / "plan", place) if ends else None
        for _ in learner.run(stream, resume=True, save_to=folder / "checkpoints", save_every=options.every):
            pass
        state = {n: w.detach().clone() for n, w in learner.module.named_parameters() if n in learner.state.omega}
        torch.save({"theta": state, "omega": learner.state.omega}, folder / f"final-{place}.pt")
        dist.barrier()
    except Exception as error:
        fill_disk()
        with (folder / f"errors-{place}.txt").open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        # Threads that wait for the dead must not keep this process.
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
