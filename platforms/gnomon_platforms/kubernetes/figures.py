"""Prometheus metrics of a process's use of the API server, the same for gateway and autoscaler class.

gnomon_leading                     1 for the replica that leads, which decides and writes
gnomon_kubernetes_silence_seconds  seconds since the API server's last answer
gnomon_kubernetes_requests_total   requests by verb, resource and outcome (`client.Asked`)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gnomon_platforms.kubernetes.client import Asked

if TYPE_CHECKING:
    from prometheus_client import Metric


def cluster_figures(asked: Asked, *, leads: bool) -> Iterator[Metric]:
    """The metrics; `leads` is whether this process decides and writes."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - whoever has a page has it

    requests = CounterMetricFamily(
        "gnomon_kubernetes_requests",
        "Requests to the API server by verb, resource and outcome: a status, fenced, or unanswered.",
        labels=["verb", "resource", "outcome"],
    )
    for labels, count in sorted(asked.counts.items()):
        requests.add_metric(labels, count)
    yield GaugeMetricFamily("gnomon_leading", "Whether this process decides and writes.", value=leads)
    yield GaugeMetricFamily(
        "gnomon_kubernetes_silence_seconds", "How long ago the API server answered anything.", value=asked.silence_s
    )
    yield requests
