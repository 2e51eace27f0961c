"""The Prometheus series of applications: which variants answer their queries, and which have instances.

The series of functions count an application under its endpoint's name, with all its members; those here tell its variants apart.
Two more say whether the store of registered models answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_core.interfaces import StoreHealth
from gnomon_gateway.applications.service import Applications, Endpoint

_LABELS = ("application", "variant")


class ApplicationCollector(Collector):
    """The collector of an application service; of nothing where the platform has none."""

    def __init__(self, applications: Callable[[], Applications | None]) -> None:
        self._applications = applications

    def collect(self) -> Iterator[Metric]:
        applications = self._applications()
        if applications is not None:
            yield from _variants(applications.endpoints())
            yield from _store(applications.store_health())


def _variants(endpoints: Iterable[Endpoint]) -> Iterator[Metric]:
    queries = CounterMetricFamily("gnomon_application_queries", "Queries by the variant that was chosen.", labels=_LABELS)
    degraded = CounterMetricFamily(
        "gnomon_application_degraded_queries",
        "Queries by the variant that was chosen, where it is less accurate than wished and not below the query's floor.",
        labels=_LABELS,
    )
    ready = GaugeMetricFamily("gnomon_application_ready", "Instances of a variant that can take batches.", labels=_LABELS)
    wanted = GaugeMetricFamily(
        "gnomon_application_workers_wanted",
        "Machines that an application's load asks for (1), or could do without (-1).",
        labels=_LABELS[:1],
    )
    for endpoint in endpoints:
        wanted.add_metric((str(endpoint.key),), len(endpoint.workers.add) - len(endpoint.workers.remove))
        for variant, count in sorted(endpoint.application.answered_by.items()):
            queries.add_metric((str(endpoint.key), variant), count)
        for variant, count in sorted(endpoint.application.degraded_by.items()):
            degraded.add_metric((str(endpoint.key), variant), count)
        for variant, member in sorted(endpoint.members.items()):
            ready.add_metric((str(endpoint.key), variant), member.runtime.ready)
    yield from (queries, degraded, ready, wanted)


def _store(health: StoreHealth) -> Iterator[Metric]:
    up = GaugeMetricFamily("gnomon_metadata_store_up", "Whether the store of registered models answers.", labels=("store",))
    up.add_metric((health.kind,), float(health.available))
    unsent = GaugeMetricFamily("gnomon_metadata_store_unsent", "Registered models whose changes it lacks.", labels=("store",))
    unsent.add_metric((health.kind,), health.unsent)
    yield from (up, unsent)
