"""What a run came to, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPORT = "report.html"


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        folder: Where its files are.
        steps: Samples that were taken in all, and labels that came after their samples.
        signal: Number of the signal that stopped the run early; `None` if it came to its end.
        scores: Metrics over all samples.
        window: Metrics over the last `window_size`.
        baselines: Metrics of simple guesses on the same samples: names of guesses to metrics.
        behind: In words, each baseline that the learner is behind.
        window_size: Samples of the window.
        labels: What became of samples whose labels were to come later, as `learner.labels` counts them; `None` if
            all targets came with their samples.
        skipped: Rows of the stream that were left out.
    """

    folder: Path
    steps: int
    signal: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    window_size: int | None = None
    labels: dict[str, int] | None = None
    skipped: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `result.json` holds."""
        return {name: value for name, value in asdict(self).items() if name not in ("folder", "signal")}

    def summary(self) -> str:
        """The result in one line.

        Example:
            >>> Result(Path("out"), 1268, scores={"MAE": 0.6104}, window={"MAE": 0.197}, window_size=200).summary()
            '1,268 samples · MAE 0.61 (last 200: 0.197) · out'
        """
        parts = [f"{self.steps:,} samples"]
        if self.skipped:
            parts.append(f"{self.skipped:,} row{'s' * (self.skipped > 1)} left out")
        if self.labels is not None and self.labels["late"]:
            counts = "labels: {learned:,} learned, {late:,} too late, {waiting:,} samples wait"
            parts.append(counts.format(**self.labels))
        for name, value in self.scores.items():
            beside = [f"last {self.window_size:,}: {self.window[name]:.3g}"] if name in self.window else []
            beside += [f"{kind} {scores[name]:.3g}" for kind, scores in self.baselines.items() if name in scores]
            parts.append(f"{name} {value:.3g}" + (f" ({'; '.join(beside)})" if beside else ""))
        report = self.folder / REPORT
        return " · ".join([*parts, f"report: {report}" if report.exists() else str(self.folder)])

    @property
    def warnings(self) -> list[str]:
        """Problems of a run that has ended, with remedies."""
        found = list(self.behind)
        if found:
            found.append(
                "If it gets worse as it learns, lower hyper.beta (or hyper.lr), or set stream.standardize = true."
            )
        if self.skipped and not self.steps:
            found.append(
                f"Nothing was learned: all rows that were read, {self.skipped:,} of them, were left out. Set "
                'stream.bad = "raise" to see what is wrong with the first one. stream.missing and stream.finite '
                "can leave rows out too."
            )
        if self.labels is not None and self.labels["late"]:
            found.append(
                f"{self.labels['late']:,} labels came for samples that were not kept, and were not learned. "
                "Raise learner.late, the number of samples that are kept for their labels."
            )
        return found
