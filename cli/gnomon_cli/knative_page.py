"""What the autoscaler class tells over HTTP: whether it is well, figures for Prometheus, and every decision with its reason.

`/healthz` and `/metrics` are open. `/decisions` names users' Revisions, so it is told on this machine only: in a cluster,
`kubectl port-forward` leads there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_core.functions import FunctionKey

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeService

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", ""})
MOST = 1000


class _Figures(Collector):
    """Read when they are asked for."""

    def __init__(self, service: KnativeService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        platform, leads = self._service.platform, self._service.leads
        yield GaugeMetricFamily("gnomon_knative_leading", "Whether this process writes.", float(leads))
        seeing = "Whether every activator tells what waits at it: without that nothing goes to zero."
        yield GaugeMetricFamily("gnomon_knative_activators_seen", seeing, float(platform.seeing))
        yield GaugeMetricFamily("gnomon_knative_revisions", "Revisions of this class.", float(len(platform.functions())))
        labels = ["namespace", "revision"]
        wanted = GaugeMetricFamily("gnomon_knative_wanted_pods", "Pods that a Revision's policy wants.", labels=labels)
        ready = GaugeMetricFamily("gnomon_knative_ready_pods", "Pods of a Revision that are ready.", labels=labels)
        for one in platform.revisions():
            wanted.add_metric([one.key.namespace, one.key.name], one.wanted)
            ready.add_metric([one.key.namespace, one.key.name], one.ready)
        yield wanted
        yield ready


def page(service: KnativeService) -> web.Application:
    """The routes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(service))

    async def healthz(_: web.Request) -> web.Response:
        trouble = service.trouble
        return web.Response(text=trouble or "OK", status=503 if trouble else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def decisions(request: web.Request) -> web.Response:
        _require_local(request)
        if "revision" not in request.match_info:
            found = {
                one: [each.to_json() for each in service.autoscaler.decisions(one, 1)] for one in service.platform.functions()
            }
            return web.json_response(found)
        key = FunctionKey(request.match_info["revision"], request.match_info["namespace"])
        return web.json_response([one.to_json() for one in service.autoscaler.decisions(str(key), MOST)])

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/decisions", decisions)
    application.router.add_get("/decisions/{namespace}/{revision}", decisions)
    return application


def _require_local(request: web.Request) -> None:
    """Refuse who is elsewhere, and who is lured here by a name of somebody else's."""
    host = request.host.rpartition(":")[0] if not request.host.endswith("]") and ":" in request.host else request.host
    if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback or host not in LOCAL_NAMES:  # noqa: S104 - compared
        raise web.HTTPForbidden(text="Ask on this machine; in a cluster by kubectl port-forward.\n")
