"""Counts, times and scores for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from hamlearn.serve.access import Access
from hamlearn.serve.agent import Agent
from hamlearn.serve.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_COUNTS = {
    "samples": "Samples taken.",
    "learned": "Samples that came with a target and were learned from.",
    "bad": "Samples that the learner rejected, for example because a loss was not finite.",
    "seen": "Samples and labels that came again and were not learned again.",
    "clipped": "Samples with numbers far beyond the scale of those before, which were clipped.",
    "late": "Labels whose sample was not kept.",
    "labels": "Labels learned from.",
}
_GAUGES = {
    "loss": "Mean loss over about the last 1,000 targets.",
    "score": "R², or the accuracy, over the same.",
    "diverging": "1 while the learner diverges.",
    "checkpoint_age_seconds": "Age of the newest checkpoint.",
}


class Metrics:
    """What `GET /metrics` returns.

    Args:
        service: The learners and their queue.
        access: Counts failed logins.
    """

    def __init__(self, service: Service, access: Access) -> None:
        self._service, self._access = service, access
        # A registry of its own: two servers in one process do not share counts.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "hamlearn_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "hamlearn_request_seconds",
            "Seconds of a request.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)
        # By route and status: looking labels up takes longer than counting.
        self._counters: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        if (route, status) not in self._counters:
            self._counters[route, status] = self._requests.labels(route, str(status)), self._seconds.labels(route)
        requests, times = self._counters[route, status]
        requests.inc()
        times.observe(seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Read the metrics of the learners; called by the registry."""
        service, agents = self._service, list(self._service.agents.items())
        for name, about in _COUNTS.items():
            yield _family(CounterMetricFamily, name, about, {(key,): agent.counts[name] for key, agent in agents})
        found = {key: _gauges(agent) for key, agent in agents}
        for name, about in _GAUGES.items():
            yield _family(GaugeMetricFamily, name, about, {(key,): values[name] for key, values in found.items()})
        about = "Squared error (accuracy) of the running mean (most frequent class), and of the last target."
        kinds = {(key, kind): values[kind] for key, values in found.items() for kind in ("mean", "last")}
        yield _family(GaugeMetricFamily, "baseline", about, kinds, "kind")
        yield GaugeMetricFamily("hamlearn_queue", "Samples that wait.", value=service.waiting)
        yield CounterMetricFamily("hamlearn_dropped", "Samples rejected for a full queue.", value=service.dropped)
        failures, logins = service.failures, self._access.failed
        yield CounterMetricFamily("hamlearn_checkpoint_failures", "Checkpoints not written.", value=failures)
        yield CounterMetricFamily("hamlearn_failed_logins", "Requests with a wrong token.", value=logins)


def _gauges(agent: Agent) -> dict[str, float | None]:
    """What changes either way; `None` for what there is not."""
    scores, newest = agent.journal.scores, agent.checkpoints.newest
    age = None if newest is None else time.time() - newest.taken
    return {**scores.read(), "diverging": int(scores.diverging is not None), "checkpoint_age_seconds": age}


def _family(kind: Any, name: str, about: str, values: Mapping[Any, float | None], *labels: str) -> Metric:
    """A value of each agent that has one."""
    family: Metric = kind(f"hamlearn_{name}", about, labels=["agent", *labels])
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)  # type: ignore[attr-defined]
    return family
