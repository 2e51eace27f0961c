"""How a gateway gets on with its cluster, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.registry import Collector

from gnomon_platforms.kubernetes.figures import cluster_figures

if TYPE_CHECKING:
    from gnomon_cli.on_kubernetes import OnKubernetes


class ClusterCollector(Collector):
    """Whether this gateway leads, and what was asked of the API server; nothing where there is no cluster."""

    def __init__(self, cluster: OnKubernetes | None) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        if self._cluster is not None:
            yield from cluster_figures(self._cluster.asked, leads=self._cluster.leads())
