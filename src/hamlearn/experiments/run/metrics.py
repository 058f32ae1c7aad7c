"""`/metrics` of a run, for Prometheus."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from hamlearn.experiments.run.keys import not_allowed
from hamlearn.record import Recorder, Sink
from hamlearn.record.fields import Row
from hamlearn.record.recorder import Moment


class Exporter(Sink):
    """Shows the newest figures of a run, read once a second, to Prometheus on this machine.

    Args:
        port: At which this machine, and no other, finds `/metrics`.
        checkpoint: The file whose age is shown.
    """

    def __init__(self, port: int, checkpoint: Path) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        super().__init__(1, ("step", "loss"))
        self._port, self._next, self._step = port, 0.0, 0
        self._registry = CollectorRegistry()
        known: dict[str, Any] = {"registry": self._registry}
        self._samples = Counter("hamlearn_samples", "Samples taken.", **known)
        self._loss = Gauge("hamlearn_loss", "Loss of the newest sample.", **known)
        about = "Metrics, of the learner and of baselines."
        self._scores = Gauge("hamlearn_score", about, labelnames=["metric"], **known)
        age = Gauge("hamlearn_checkpoint_age_seconds", "Seconds since the last checkpoint.", **known)
        age.set_function(lambda: time.time() - checkpoint.stat().st_mtime if checkpoint.exists() else math.nan)

    def open(self, recorder: Recorder) -> None:
        """Answer requests in a thread."""
        from prometheus_client import start_http_server

        super().open(recorder)
        try:
            self._server, self._thread = start_http_server(self._port, "127.0.0.1", self._registry)
        except OSError as error:
            raise not_allowed("--metrics-port", self._port, f"{error}. Give another port.") from error

    def take(self, moment: Moment) -> None:
        """Read the figures if a second has passed."""
        if time.monotonic() >= self._next:
            self.put(moment.row(self.fields))
            self._next = time.monotonic() + 1

    def put(self, row: Row) -> None:
        """Show these figures."""
        step, loss = row.pop("step"), row.pop("loss")
        self._samples.inc(step - self._step)
        self._step = step
        if loss is not None:
            self._loss.set(loss)
        for name, value in row.items():
            self._scores.labels(name).set(value)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
