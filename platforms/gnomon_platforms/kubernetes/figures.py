"""Prometheus metrics of a process's use of the API server, the same for gateway and autoscaler class.

gnomon_leading                     1 for the replica that leads, which decides and writes
gnomon_kubernetes_silence_seconds  seconds since the API server's last answer
gnomon_kubernetes_requests_total   requests by verb, resource and outcome (`client.ApiMetrics`)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gnomon_platforms.kubernetes.client import ApiMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric


def cluster_figures(metrics: ApiMetrics, *, leads: bool) -> Iterator[Metric]:
    """The metrics; `leads` is whether this process decides and writes."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - optional: processes with a metrics page have it

    requests = CounterMetricFamily(
        "gnomon_kubernetes_requests",
        "Requests to the API server by verb, resource and outcome: a status, fenced, or unanswered.",
        labels=["verb", "resource", "outcome"],
    )
    for labels, count in sorted(metrics.counts.items()):
        requests.add_metric(labels, count)
    yield GaugeMetricFamily("gnomon_leading", "1 if this process is the leader, which decides and writes.", value=leads)
    yield GaugeMetricFamily(
        "gnomon_kubernetes_silence_seconds", "Seconds since the API server's last answer.", value=metrics.silence_s
    )
    yield requests
