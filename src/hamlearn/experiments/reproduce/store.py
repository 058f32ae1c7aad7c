"""Finished runs on disk: one file each, whole or absent, found again by all that determines them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hamlearn.errors import CheckpointError
from hamlearn.experiments.comparison import Run
from hamlearn.experiments.reproduce.job import Job
from hamlearn.state import checkpoint

_WEIGHT = "weights/"


@dataclass(frozen=True)
class Store:
    """A folder of finished runs. Runs of other settings, data or versions lie beside each other untouched."""

    folder: Path

    def open(self) -> None:
        """Make the folder where it is missing, and sweep away what a killed process left half-written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)

    def path(self, job: Job) -> Path:
        """Where the run of this job lies, if it is there."""
        return self.folder / f"{job.name}.safetensors"

    def has(self, job: Job) -> bool:
        """Whether the run is there, whole; a damaged file is removed, so that the run is done again."""
        if not self.path(job).is_file():
            return False
        try:
            self.read(job)
        except CheckpointError:
            self.path(job).unlink()
            return False
        return True

    def write(self, job: Job, run: Run) -> None:
        """Keep the run; a crash at any moment leaves the whole file or none."""
        weights = {_WEIGHT + name: weight for name, weight in run.weights.items()}
        tensors = {"loss": run.loss, "correct": run.correct, **weights}
        checkpoint.write(self.path(job), tensors, {"order": list(run.weights), "job": job.identity})

    def read(self, job: Job) -> Run:
        """The finished run."""
        tensors, header = checkpoint.read(self.path(job))
        if header.get("job") != job.identity:
            raise CheckpointError(f"{self.path(job)} holds another run than its name says: remove it")
        weights = {name: tensors[_WEIGHT + name] for name in header["order"]}
        return Run(tensors["loss"], tensors["correct"], weights)
