"""A progress bar: loss, samples per second, dropped samples."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from hamlearn.record.divergence import Divergence
from hamlearn.record.fields import Moment, Row
from hamlearn.record.recorder import Recorder
from hamlearn.record.sinks import Sink

_LOOK = 16
"""Steps between looks at the clock, which costs as much as the rest of the bar."""


class Progress(Sink):
    """A bar on the terminal with the smoothed loss, samples per second, and what a live feed has dropped.

    Args:
        total: Steps to come, as far as can be foreseen; `None`: unknown.
        every: Seconds between two drawings.
        console: Where to draw; `None` is the standard error.
        watch: Whose alarm is shown; put it before the bar among the sinks.

    Example:
        >>> from hamlearn.record import Divergence, Progress
        >>> watch = Divergence()
        >>> sinks = [watch, Progress(total=1000, watch=watch)]
    """

    kept = False

    def __init__(
        self,
        total: int | None = None,
        every: float = 0.5,
        console: Console | None = None,
        watch: Divergence | None = None,
    ) -> None:
        super().__init__(None, ())
        self._every, self._watch = every, watch
        words = ("loss [bold]{task.fields[loss]}", "[cyan]{task.fields[rate]}[/] samples/s", "{task.fields[more]}")
        self._bar = Bar(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            *map(TextColumn, words),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
            # Drawn from within the loop, without a thread.
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total, loss="-", rate="-", more="")
        self._loss: float | None = None
        self._moment: Moment | None = None
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
        if self._moment is None:
            self._drawn = (time.perf_counter(), moment.step - 1)
        self._moment = moment
        if moment.step % _LOOK == 0 and time.perf_counter() - self._drawn[0] >= self._every:
            self._draw(moment)

    def put(self, row: Row) -> None:
        """Rows are not drawn one by one."""

    def finish(self) -> None:
        """The stream has ended: what was seen of it is all there was, whatever `total` had foreseen."""
        if self._moment is not None:
            self._bar.update(self._task, total=self._moment.step)

    def close(self) -> None:
        """Draw the last state and let the bar stand."""
        if self._moment is not None:
            self._draw(self._moment)
        self._bar.stop()

    def _draw(self, moment: Moment) -> None:
        (then, before), now = self._drawn, time.perf_counter()
        if moment.step > before:
            self._bar.update(self._task, rate=f"{(moment.step - before) / max(now - then, 1e-9):,.0f}")
            self._drawn = (now, moment.step)
        more = f"[yellow]{moment['dropped']:,} dropped[/]" if moment["dropped"] else ""
        if self._watch is not None and self._watch.since is not None:
            more += f"[bold red]diverging since {self._watch.since:,}[/]"
        loss = "-" if self._loss is None else f"{self._loss:.5g}"
        self._bar.update(self._task, completed=moment.step, loss=loss, more=more, refresh=True)
