"""The metrics that join parts: of each function, from the gateway and the autoscaler, and of the gateway's cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.registry import Collector

from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.service import FunctionService
from gnomon_gateway.metrics import FunctionReading
from gnomon_platforms.kubernetes.figures import cluster_figures

if TYPE_CHECKING:
    from gnomon_server.kubernetes import ClusterBackend


def readings(functions: FunctionService, manager: Manager, decided: Callable[[str], int]) -> Iterator[FunctionReading]:
    """The values of each function's metrics; `decided` counts its scaling decisions."""
    for runtime in manager.runtimes():
        status = functions.status(runtime.key)
        if status is not None:
            last = functions.decisions(runtime.key, 1)
            yield FunctionReading(
                name=runtime.name,
                settings=status.spec.settings,
                metrics=runtime.metrics,
                replicas=status.replicas,
                ready=status.available_replicas,
                decisions=decided(runtime.name),
                late=runtime.dispatcher.late_answers,
                instances=manager.instances.seen(runtime.name),
                policy=last[0].policy if last else "",
            )


class ClusterCollector(Collector):
    """Whether this gateway leads, and its requests to the API server."""

    def __init__(self, cluster: ClusterBackend) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        yield from cluster_figures(self._cluster.asked, leads=self._cluster.leads())
