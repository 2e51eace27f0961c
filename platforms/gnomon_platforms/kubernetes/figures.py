"""How a process gets on with its API server, for Prometheus: gateway and autoscaler class tell the same.

gnomon_leading                     who decides and writes: one of the replicas has 1
gnomon_kubernetes_silence_seconds  the API server has answered nothing for so long
gnomon_kubernetes_requests_total   what was asked of it, and how that was answered (`asked`)
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
