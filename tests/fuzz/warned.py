"""The compiled engine's refusals, told from every other warning."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from tests.fuzz.looks import Mismatch


class Refusals(warnings.catch_warnings):
    """Counts the compiled engine's refusals by name; every other warning is an error.

    Attributes:
        from_start: Whether the engine had refused before its first report, so that all was done eagerly.
    """

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(record=True)
        self.counts = counts
        self.from_start = False

    def __enter__(self) -> Refusals:  # type: ignore[override]
        self.log = super().__enter__()
        warnings.simplefilter("always")
        return self

    def first(self) -> None:
        """To be called at the first report."""
        self.from_start = any("falls back to the eager engine" in str(warning.message) for warning in self.log)

    def __exit__(self, *details: Any) -> None:
        log = list(self.log)
        super().__exit__(*details)
        for warning in log:
            text = str(warning.message)
            if warning.category is RuntimeWarning and text.startswith(
                "engine='compiled' falls back to the eager engine"
            ):
                self.counts["refused to record"] += 1
            elif details[0] is None:
                raise Mismatch(f"an unexpected warning: {text}")
