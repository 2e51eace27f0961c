"""How a gateway gets on with its cluster, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gnomon_cli.on_kubernetes import OnKubernetes


class ClusterCollector(Collector):
    """Whether this gateway leads, and what was asked of the API server; nothing where there is no cluster."""

    def __init__(self, cluster: OnKubernetes | None) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        if self._cluster is None:
            return
        asked = self._cluster.asked
        requests = CounterMetricFamily(
            "gnomon_kubernetes_requests",
            "Requests to the API server by verb, resource and outcome: a status, fenced, or unanswered.",
            labels=["verb", "resource", "outcome"],
        )
        for labels, count in sorted(asked.counts.items()):
            requests.add_metric(labels, count)
        yield GaugeMetricFamily("gnomon_leading", "Whether this gateway decides and writes.", value=self._cluster.leads())
        yield GaugeMetricFamily(
            "gnomon_kubernetes_silence_seconds", "How long ago the API server answered anything.", value=asked.silence_s
        )
        yield requests
