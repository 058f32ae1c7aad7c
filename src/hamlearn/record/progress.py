"""A progress bar: loss, samples per second, dropped samples."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from hamlearn.record.fields import Row
from hamlearn.record.recorder import Moment, Recorder, Sink

_LOOK = 16
"""Steps between looks at the clock, which costs as much as the rest of the bar."""


class Progress(Sink):
    """A bar on the terminal with the smoothed loss, samples per second, and what a live feed has dropped.

    Args:
        total: Steps to come, as far as can be foreseen; `None`: unknown.
        pause: Seconds between two drawings.
        console: Where to draw; `None` is the standard error.

    Example:
        >>> Progress(total=1000).kept
        False
    """

    def __init__(self, total: int | None = None, pause: float = 0.5, console: Console | None = None) -> None:
        super().__init__(1, ())
        self._pause = pause
        columns = (SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn())
        words = TextColumn("{task.description}")
        console = console or Console(stderr=True)
        # Drawn from within the loop, without a thread.
        self._bar = Bar(*columns, words, TimeElapsedColumn(), console=console, auto_refresh=False)
        self._task = self._bar.add_task("", total=total)
        self._loss: float | None = None
        self._newest: Moment | None = None
        # When it was drawn last, and at which step.
        self._drawn = (0.0, 0)

    def open(self, recorder: Recorder) -> None:
        """Show the bar."""
        self._bar.start()

    def take(self, moment: Moment) -> None:
        """Count a step, and draw if it is time."""
        loss = moment["loss"]
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + 0.02 * (loss - self._loss)
        if self._newest is None:
            self._drawn = (time.perf_counter(), moment.step - 1)
        self._newest = moment
        if moment.step % _LOOK == 0 and time.perf_counter() - self._drawn[0] >= self._pause:
            self._draw(moment)

    def put(self, row: Row) -> None:
        """Rows are not drawn one by one."""

    def finish(self) -> None:
        """The stream has ended: what was seen of it is all there was, whatever `total` had foreseen."""
        if self._newest is not None:
            self._bar.update(self._task, total=self._newest.step)

    def close(self) -> None:
        """Draw the last state and let the bar stand."""
        if self._newest is not None:
            self._draw(self._newest)
        self._bar.stop()

    def _draw(self, moment: Moment) -> None:
        (then, before), now = self._drawn, time.perf_counter()
        rate = (moment.step - before) / max(now - then, 1e-9)
        self._drawn = (now, moment.step)
        loss = "-" if self._loss is None else f"{self._loss:.5g}"
        more = f" [yellow]{moment['dropped']:,} dropped[/]" if moment["dropped"] else ""
        words = f"loss [bold]{loss}[/] [cyan]{rate:,.0f}[/] samples/s{more}"
        self._bar.update(self._task, completed=moment.step, description=words, refresh=True)
