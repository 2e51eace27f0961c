"""What a gateway's /metrics says of its cluster."""

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from gnomon_platforms.kubernetes.client import UNANSWERED, Asked
from gnomon_server.metrics import ClusterCollector
from gnomon_server.platforms import Backend


def page(cluster: Any) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ClusterCollector(cast("Any", cluster)))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_metrics_tell_who_leads_how_long_the_api_server_is_silent_and_what_it_was_asked() -> None:
    now_s = [100.0]
    asked = Asked(lambda: now_s[0])
    asked.count("PATCH", "/api/v1/namespaces/fn/pods/x/resize", 200)
    now_s[0] = 130.0
    asked.count("PATCH", "/api/v1/namespaces/fn/pods/x", UNANSWERED)
    assert page(SimpleNamespace(asked=asked, leads=lambda: True)) == [
        "gnomon_leading 1.0",
        "gnomon_kubernetes_silence_seconds 30.0",
        'gnomon_kubernetes_requests_total{outcome="unanswered",resource="pods",verb="PATCH"} 1.0',
        'gnomon_kubernetes_requests_total{outcome="200",resource="pods/resize",verb="PATCH"} 1.0',
    ]


def test_without_a_cluster_there_are_no_metrics_of_one() -> None:
    assert list(Backend().collectors()) == []
