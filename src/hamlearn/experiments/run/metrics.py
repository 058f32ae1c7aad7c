"""`/metrics` of a run, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hamlearn.experiments.run.keys import not_allowed
from hamlearn.record import Sink
from hamlearn.record.fields import Moment, Row


class Exporter(Sink):
    """Keeps the newest figures of a run, read once a second, and serves them to Prometheus.

    Args:
        checkpoint: The file whose age is shown.
        port: At which this machine, and no other, finds them; `None` serves nothing.
    """

    kept = False

    def __init__(self, checkpoint: Path, port: int | None) -> None:
        super().__init__(None, ("step", "loss", "diverging"))
        self._checkpoint, self._port = checkpoint, port
        self._row: Row = {}
        self._next = 0.0

    def take(self, moment: Moment) -> None:
        """Read the figures if a second has passed."""
        if self._port is not None and time.monotonic() >= self._next:
            self._row, self._next = moment.row(self.fields), time.monotonic() + 1

    def put(self, row: Row) -> None:
        """Not used: rows are not kept."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer requests in a thread."""
        if self._port is None:
            yield
            return
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)  # type: ignore[arg-type]
        try:
            server, thread = start_http_server(self._port, "127.0.0.1", registry)
        except OSError as error:
            raise not_allowed("--metrics-port", self._port, f"{error}. Give another port.") from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def collect(self) -> Iterator[object]:
        """The figures in the form of `prometheus_client`, which calls this at each request."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        row = dict(self._row)
        yield CounterMetricFamily("hamlearn_samples", "Samples taken.", value=row.pop("step", 0))
        diverging = row.pop("diverging", None) is not None
        yield GaugeMetricFamily("hamlearn_diverging", "1 while the run diverges.", value=int(diverging))
        loss = row.pop("loss", None)
        if loss is not None:
            yield GaugeMetricFamily("hamlearn_loss", "Loss of the newest sample.", value=loss)
        scores = GaugeMetricFamily(
            "hamlearn_score", "Metrics, of the learner and of baselines.", labels=["metric"]
        )
        for name, value in row.items():
            scores.add_metric([name], value)
        yield scores
        if self._checkpoint.exists():
            age = time.time() - self._checkpoint.stat().st_mtime
            yield GaugeMetricFamily(
                "hamlearn_checkpoint_age_seconds", "Seconds since the last checkpoint.", value=age
            )
