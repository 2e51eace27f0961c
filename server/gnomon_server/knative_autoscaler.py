"""`gnomon serve --platform knative`: the autoscaler class `gnomon`, beside Knative's own autoscaler, and its HTTP page.

    lead, by a Lease ▶ watch every Revision ▶ the autoscaler's loop decides ▶ pods, ServerlessServices, PodAutoscalers' status

Requests do not pass through this process. Its page answers

    /healthz, /metrics               health, and metrics for Prometheus
    /decisions/NAMESPACE/REVISION    every decision with its reason
    /instances/NAMESPACE/REVISION    the Bodies and Shadows of now, and the nodes that the scheduler has put them on

The first two are open. The others name users' Revisions, so they answer on this machine only: in a cluster, use
`kubectl port-forward`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import SCALING, Policies
from gnomon_core.clock import WallClock
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import refuse_strays
from gnomon_core.settings import Settings
from gnomon_gateway.scheduling.registry import SCHEDULING, Schedulers
from gnomon_platforms.knative.autoscaler.cluster import AutoscalerOptions
from gnomon_platforms.knative.autoscaler.controller import KnativeAutoscaler
from gnomon_platforms.knative.resources import SYSTEM_NAMESPACE
from gnomon_platforms.kubernetes.client import Api, ApiMetrics, cluster_figures, connect
from gnomon_platforms.kubernetes.lease import Candidacy, Tenure, count_from_now
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target
from gnomon_server.process import begin_log, serve_until_signal
from gnomon_server.scaling import ScalingAdapter

LEASE = "gnomon-knative-autoscaler"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", ""})
MOST = 1000


@dataclass(frozen=True, slots=True)
class KnativeOptions:
    """The options. `lease_namespace` None leads without a Lease; `policies` of installed packages may be loaded."""

    kubeconfig: Path | None = None
    context: str | None = None
    scaled: AutoscalerOptions = field(default_factory=AutoscalerOptions)
    lease_namespace: str | None = SYSTEM_NAMESPACE
    policies: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0


def within(options: KnativeOptions, namespace: str) -> KnativeOptions:
    """Return the options for one namespace, with the Lease in it, so that each of several processes leads its own namespace."""
    return replace(options, scaled=replace(options.scaled, namespace=namespace), lease_namespace=namespace)


def capabilities(*, resizes: bool) -> Capabilities:
    """The capabilities of policies on Revisions: a node that a policy names is a preference, and the scheduler decides.

    A Deployment has a number, so Kubernetes picks its victims. Pods are resized where the cluster can; where no node can make
    Shadows, Bodies work alone.
    """
    return Capabilities(place=True, size=resizes, victim=False, resize=resizes, pair=True)


class RevisionScaling(ScalingAdapter):
    """The adapter for Revisions, whose settings no API checks before they exist: they are checked when they are read."""

    def __init__(self, policies: Policies, schedulers: Schedulers, capabilities: Callable[[], Capabilities]) -> None:
        super().__init__(policies, capabilities)
        self._known = (policies, schedulers)

    def check(self, settings: Settings) -> str:
        # The gateway knows whether the named scheduling policy exists.
        refuse_strays(settings, *self._known, [settings.scheduler] if settings.scheduler else [])
        return super().check(settings)


class KnativeService:
    """The process of the autoscaler class. `start` returns when it leads and its watches have listed everything."""

    def __init__(self, options: KnativeOptions, rng: Random, api: Api | None = None, tenure: Tenure | None = None) -> None:
        self._options = options
        self._api = api or connect(options.kubeconfig, options.context)
        self._clock = WallClock()
        self._candidacy = None if options.lease_namespace is None else self._stand(options.lease_namespace, rng, tenure)
        policies = SCALING.with_named(options.policies)
        schedulers = SCHEDULING.with_named(options.policies)
        self._scaling = RevisionScaling(policies, schedulers, lambda: capabilities(resizes=self.platform.resizes))
        fence = None if self._candidacy is None else self._candidacy.tenure.check
        self.platform = KnativeAutoscaler(self._api, options.scaled, fence=fence, clock=self._clock, rng=rng, epoch=self._epoch)
        self.autoscaler = Autoscaler(self.platform, self._clock, policies=policies)
        self._scaling.bind(self.autoscaler)
        self._page: web.AppRunner | None = None
        self._deciding: asyncio.Task[None] | None = None

    def _stand(self, namespace: str, rng: Random, tenure: Tenure | None) -> Candidacy:
        # Nodes remember the epochs that they have obeyed, also those of an installation that was removed.
        lease = Target(LEASES, namespace, LEASE)
        return Candidacy(self._api, lease, self._clock, rng, counts_from=count_from_now, tenure=tenure)

    def _epoch(self) -> int:
        return 1 if self._candidacy is None else self._candidacy.epoch

    @property
    def leads(self) -> bool:
        """Return whether this process is the leader and may write."""
        return self._candidacy is None or self._candidacy.leads

    @property
    def api_metrics(self) -> ApiMetrics:
        """Counts of requests to the API server by result."""
        return self._api.metrics

    @property
    def trouble(self) -> str:
        """The reason why this process does not work, else empty. A process that waits to become the leader is healthy."""
        return self.platform.trouble if self.leads else ""

    @property
    def port(self) -> int:
        """The port of the page."""
        assert self._page is not None
        port: int = self._page.addresses[0][1]
        return port

    async def start(self) -> None:
        """Become the leader, watch everything, and begin to decide."""
        self._page = web.AppRunner(page(self), access_log=None)
        await self._page.setup()
        await web.TCPSite(self._page, self._options.host, self._options.port).start()
        if self._candidacy is not None:
            await self._candidacy.start()
            await self._candidacy.leader.leading.wait()
        await self.platform.start(self._scaling)
        self._deciding = asyncio.create_task(self.autoscaler.run())

    async def stop(self) -> None:
        """Stop deciding. Revisions stay as they are for the next leader."""
        if self._deciding is not None:
            self._deciding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._deciding
        await self.platform.stop()
        if self._candidacy is not None:
            await self._candidacy.stop()
        if self._page is not None:
            await self._page.cleanup()
        self._api.close()


def serve_knative(options: KnativeOptions, *, verbose: bool = False) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        GnomonError: 501 without the Kubernetes client, 503 if no cluster is configured.

    """
    begin_log(verbose=verbose)
    serving_line = f"Gnomon scales Revisions of the class {options.scaled.class_name}."
    uvloop.run(serve_until_signal(lambda: KnativeService(options, SystemRandom()), lambda _: serving_line))


class _Metrics(Collector):
    """The metrics, read at each scrape."""

    def __init__(self, service: KnativeService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        platform = self._service.platform
        yield from cluster_figures(self._service.api_metrics, leads=self._service.leads)
        about = "Whether every activator tells what waits at it: without that nothing goes to zero."
        yield GaugeMetricFamily("gnomon_knative_activators_seen", about, float(platform.observing))
        yield GaugeMetricFamily("gnomon_knative_revisions", "Revisions of this class.", float(len(platform.functions())))
        labels = ["namespace", "revision"]
        desired = GaugeMetricFamily("gnomon_knative_wanted_pods", "Pods that a Revision's policy wants.", labels=labels)
        ready = GaugeMetricFamily("gnomon_knative_ready_pods", "Pods of a Revision that are ready.", labels=labels)
        for revision in platform.revisions():
            desired.add_metric([revision.key.namespace, revision.key.name], revision.wanted)
            ready.add_metric([revision.key.namespace, revision.key.name], revision.ready)
        yield desired
        yield ready


def page(service: KnativeService) -> web.Application:
    """The page's HTTP routes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(service))

    async def healthz(_: web.Request) -> web.Response:
        trouble = service.trouble
        return web.Response(text=trouble or "OK", status=503 if trouble else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def decisions(request: web.Request) -> web.Response:
        _require_local(request)
        if "revision" not in request.match_info:
            found = {
                function: [each.to_json() for each in service.autoscaler.decisions(function, 1)]
                for function in service.platform.functions()
            }
            return web.json_response(found)
        return web.json_response([decision.to_json() for decision in service.autoscaler.decisions(str(_key(request)), MOST)])

    async def instances(request: web.Request) -> web.Response:
        _require_local(request)
        load = service.platform.load(str(_key(request)))
        if load is None:
            raise web.HTTPNotFound(text=f"{_key(request)} is no Revision of this class.\n")
        return web.json_response(
            [_instance(instance, service.platform.pod_of(instance.function, instance.id)) for instance in load.instances]
        )

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/decisions", decisions)
    application.router.add_get("/decisions/{namespace}/{revision}", decisions)
    application.router.add_get("/instances/{namespace}/{revision}", instances)
    return application


def _key(request: web.Request) -> FunctionKey:
    return FunctionKey(request.match_info["revision"], request.match_info["namespace"])


def _instance(instance: Instance, pod: str | None) -> dict[str, object]:
    """An instance as JSON. A Body that has no pod yet has been requested; `shadows` are a Body's, `body` is a Shadow's."""
    body = instance.kind is InstanceKind.BODY
    more = {"pod": pod, "shadows": list(instance.shadows)} if body else {"body": instance.partner}
    known = {
        "id": instance.id,
        "kind": instance.kind.value,
        "state": instance.state.value,
        "node": instance.node,
        "cores": instance.cores,
    }
    return {**known, **more}


def _require_local(request: web.Request) -> None:
    """Refuse clients on other machines, and browsers led here by a foreign host name (DNS rebinding)."""
    host = request.host.rpartition(":")[0] if not request.host.endswith("]") and ":" in request.host else request.host
    if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback or host not in LOCAL_NAMES:  # noqa: S104 - compared
        raise web.HTTPForbidden(text="Ask on this machine; in a cluster by kubectl port-forward.\n")
