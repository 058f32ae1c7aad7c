"""Counts and times for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from hamlearn.serve.agents import Agents
from hamlearn.serve.saver import Saver
from hamlearn.serve.worker import Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_OF_AGENTS = {
    "samples": "Samples taken.",
    "learned": "Samples that came with a target and were learned from.",
    "bad": "Samples that the learner refused, as where a loss is not finite.",
    "seen": "Samples and labels that came again and were not learned again.",
    "dropped": "Samples refused because too many waited.",
    "late": "Labels whose sample was not kept.",
    "labels": "Labels learned from.",
}


class Metrics:
    """What `GET /metrics` tells.

    Args:
        agents: The learners.
        worker: Their thread.
        saver: Who saves them.
    """

    def __init__(self, agents: Agents, worker: Worker, saver: Saver) -> None:
        self._agents, self._worker, self._saver = agents, worker, saver
        # A registry of its own: two servers in one process do not know of each other.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "hamlearn_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "hamlearn_request_seconds",
            "Seconds from the first byte of a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._found: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._registry.register(self)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        if (route, status) not in self._found:
            # To look them up by their labels takes longer than to count.
            self._found[route, status] = self._requests.labels(route, str(status)), self._seconds.labels(route)
        counter, histogram = self._found[route, status]
        counter.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is read off the learners when somebody asks; called by the registry."""
        for name, about in _OF_AGENTS.items():
            family = CounterMetricFamily(f"hamlearn_{name}", about, labels=["agent"])
            for key, agent in self._agents.items():
                family.add_metric([key], agent.counts[name])
            yield family
        saved = GaugeMetricFamily("hamlearn_checkpoint_samples", "Samples in the checkpoint.", labels=["agent"])
        for key, agent in self._agents.items():
            saved.add_metric([key], 0 if agent.saved is None else agent.saved["position"])
        yield saved
        yield GaugeMetricFamily("hamlearn_queue", "Samples that wait.", value=self._worker.waiting)
        yield CounterMetricFamily("hamlearn_rounds", "Blocks of requests taken.", value=self._worker.rounds)
        yield CounterMetricFamily(
            "hamlearn_checkpoint_failures", "Checkpoints that could not be written.", value=self._saver.failures
        )
