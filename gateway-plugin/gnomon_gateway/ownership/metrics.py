"""What a replica has and what it forwards, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gnomon_gateway.ownership.replica import ReplicaLife


class OwnershipCollector(Collector):
    """Reads the counters of a replica when they are scraped; there are none where `life` says that nothing is shared."""

    def __init__(self, life: Callable[[], ReplicaLife | None]) -> None:
        self._life = life

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        life = self._life()
        if life is None:
            return
        holdings, forwarder = life.holdings, life.forwarder
        functions = GaugeMetricFamily("gnomon_owned_functions", "Functions that this replica dispatches.", labels=["state"])
        functions.add_metric(["serving"], len(holdings.serving))
        functions.add_metric(["draining"], len(holdings.draining))
        forwarded = CounterMetricFamily(
            "gnomon_forwarded_requests", "Requests on their way between replicas, by what became of them.", labels=["event"]
        )
        for event, count in asdict(forwarder.counters).items():
            forwarded.add_metric([event], count)
        yield GaugeMetricFamily("gnomon_ownership_epoch", "The newest map of owners that is known here.", value=holdings.epoch)
        yield functions
        yield forwarded
        yield GaugeMetricFamily(
            "gnomon_forwarding_requests", "Requests that are not answered here, now.", value=forwarder.requests
        )
        yield GaugeMetricFamily("gnomon_ownerless_requests", "Requests that wait for an owner, now.", value=forwarder.waiting)
