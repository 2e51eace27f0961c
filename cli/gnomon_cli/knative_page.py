"""What the autoscaler class tells over HTTP.

    /healthz, /metrics               whether it is well, and figures for Prometheus
    /decisions/NAMESPACE/REVISION    every decision with its reason
    /instances/NAMESPACE/REVISION    the Bodies and Shadows that there are now, and on which nodes the scheduler has put them

The first two are open. The others name users' Revisions, so they are told on this machine only: in a cluster, `kubectl
port-forward` leads there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.figures import cluster_figures

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeService

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", ""})
MOST = 1000


class _Figures(Collector):
    """Read when they are asked for."""

    def __init__(self, service: KnativeService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        platform = self._service.platform
        yield from cluster_figures(self._service.asked, leads=self._service.leads)
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
        return web.json_response([one.to_json() for one in service.autoscaler.decisions(str(_key(request)), MOST)])

    async def instances(request: web.Request) -> web.Response:
        _require_local(request)
        load = service.platform.load(str(_key(request)))
        if load is None:
            raise web.HTTPNotFound(text=f"{_key(request)} is no Revision of this class.\n")
        return web.json_response([_instance(one, service.platform.pod_of(one.function, one.id)) for one in load.instances])

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/decisions", decisions)
    application.router.add_get("/decisions/{namespace}/{revision}", decisions)
    application.router.add_get("/instances/{namespace}/{revision}", instances)
    return application


def _key(request: web.Request) -> FunctionKey:
    return FunctionKey(request.match_info["revision"], request.match_info["namespace"])


def _instance(one: Instance, pod: str | None) -> dict[str, object]:
    """A Body without a pod is one that is wished for; `shadows` are those that it works with, `body` is a Shadow's."""
    body = one.kind is InstanceKind.BODY
    more = {"pod": pod, "shadows": list(one.shadows)} if body else {"body": one.partner}
    known = {"id": one.id, "kind": one.kind.value, "state": one.state.value, "node": one.node, "cores": one.cores}
    return {**known, **more}


def _require_local(request: web.Request) -> None:
    """Refuse who is elsewhere, and who is lured here by a name of somebody else's."""
    host = request.host.rpartition(":")[0] if not request.host.endswith("]") and ":" in request.host else request.host
    if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback or host not in LOCAL_NAMES:  # noqa: S104 - compared
        raise web.HTTPForbidden(text="Ask on this machine; in a cluster by kubectl port-forward.\n")
