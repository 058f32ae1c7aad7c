"""A progress bar: loss, samples a second, dropped samples."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from hamlearn.record.divergence import Divergence
from hamlearn.record.moments import Context, Moment, Row
from hamlearn.record.sinks import Sink

_LOOK = 16
"""Steps between looks at the clock, which costs as much as the rest of the bar."""


class Progress(Sink):
    """A bar on the terminal with the smoothed loss, samples a second, and what a live feed has dropped.

    It draws itself twice a second from within the loop, without a thread of its own.

    Args:
        total: Steps to come, as far as can be foreseen; `None` where nobody knows.
        every: Seconds between two drawings.
        smooth: Weight of the newest loss in the running mean.
        console: Where to draw; `None` is the standard error.
        watch: Whose alarm is shown; it stands before the bar among the sinks.

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
        smooth: float = 0.02,
        console: Console | None = None,
        watch: Divergence | None = None,
    ) -> None:
        super().__init__(None, ())
        self._watch = watch
        self._total, self._every, self._smooth = total, every, smooth
        self._console = Console(stderr=True) if console is None else console
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._loss: float | None = None
        self._moment: Moment | None = None
        self._drawn = (0.0, 0)

    def open(self, context: Context) -> None:
        """Show the bar."""
        self._bar = Bar(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[bold]loss[/] {task.fields[loss]}"),
            TextColumn("[cyan]{task.fields[rate]}[/] samples/s"),
            TextColumn("{task.fields[dropped]}{task.fields[alarm]}"),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=self._total, loss="-", rate="-", dropped="", alarm="")
        self._bar.start()
        self._drawn = (time.perf_counter(), -1)

    def take(self, moment: Moment) -> None:
        """Count a step, and draw if it is time."""
        loss = moment["loss"]
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + self._smooth * (loss - self._loss)
        self._moment = moment
        if self._drawn[1] < 0:
            self._drawn = (self._drawn[0], moment.step - 1)
        if moment.step % _LOOK == 0 and time.perf_counter() - self._drawn[0] >= self._every:
            self._draw()

    def put(self, row: Row, slot: int | None) -> None:
        """Rows are not drawn one by one."""

    def finish(self) -> None:
        """The stream has ended: what was seen of it is all there was, whatever `total` had foreseen."""
        if self._bar is not None and self._moment is not None:
            self._bar.update(self._task, total=self._moment.step)

    def close(self) -> None:
        """Draw the last state and let the bar stand."""
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None

    def _draw(self) -> None:
        if self._bar is None or self._moment is None:
            return
        now, step = time.perf_counter(), self._moment.step
        rate = (step - self._drawn[1]) / max(now - self._drawn[0], 1e-9)
        if step > self._drawn[1]:
            self._drawn = (now, step)
            self._bar.update(self._task, rate=f"{rate:,.0f}")
        dropped = self._moment["dropped"]
        since = None if self._watch is None else self._watch.since
        self._bar.update(
            self._task,
            completed=step,
            loss="-" if self._loss is None else f"{self._loss:.5g}",
            dropped=f"[yellow]{dropped:,} dropped[/]" if dropped else "",
            alarm="" if since is None else f"[bold red]diverging since {since:,}[/]",
        )
        self._bar.refresh()
