"""`hamlearn run`: a stream, a network, a learner, records and checkpoints from one TOML file."""

from hamlearn.experiments.run.command import run
from hamlearn.experiments.run.folder import (
    CHECKPOINT,
    RECORD,
    RESULT,
    RESUMED,
    SPEED,
    configuration,
    facts,
    reopen,
    report,
)
from hamlearn.experiments.run.opened import Opened, describe
from hamlearn.experiments.run.result import REPORT, Result

__all__ = [
    "CHECKPOINT",
    "RECORD",
    "REPORT",
    "RESULT",
    "RESUMED",
    "SPEED",
    "Opened",
    "Result",
    "configuration",
    "describe",
    "facts",
    "reopen",
    "report",
    "run",
]
