"""What Echo, Cleared and Forward learn of the delayed-add task, kept as a dated report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamlearn.bench import _report
from hamlearn.experiments import credit


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Run the study and write its curves; the figure goes beside the report."""
    found = credit.run(out, tokens=400 if quick else 60_000, window=100 if quick else 2_000)
    _report.write(out, "credit", found)
    return found
