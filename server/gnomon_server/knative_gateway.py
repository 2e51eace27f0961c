"""`gnomon serve --platform knative --gateway`: the gateway that buffers requests to Revisions that batch.

    any ingress ▶ Service of a Revision ▶ queue ▶ schedule ──one batch──▶ queue-proxy ▶ pod
                                          ├─▶ waiting requests and times of batches, port 9090 ▶ autoscaler class ▶ number of pods
                                          └─◀ B and T ◀ the Revision's PodAutoscaler ◀ autoscaler class

The parts are those of every gateway. Only the platform differs, and scaling: the autoscaler class scales Revisions. It asks each
replica what waits there, and all replicas follow its plans of buffers. Replicas share nothing: each has a queue of its own for
the requests that come to it. The page answers

    /healthz                                          whether requests may be sent here
    /metrics                                          everything
    /metrics?name[]=kn_revision_request_queued        the requests that wait, in the activators' format
    /metrics?name[]=gnomon_revision_batch_seconds     how long batches take, and their spread

The class asks for the waiting requests up to twenty times a second, so each part can be had without the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

import uvloop
from aiohttp import web

from gnomon_autoscaler.registry import SCALING, Policies, scaling_policy
from gnomon_core.clock import WallClock
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.policy_registry import described
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.api.revisions import HELD_S, RevisionApp
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.validation import scheduler_of
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.metrics import ControlCounters, GatewayCollector, LoopLag, MetricsPage
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_platforms.knative.autoscaler import metrics as signals
from gnomon_platforms.knative.autoscaler.metrics import ObservedLatency
from gnomon_platforms.knative.batching.platform import RevisionPlatform
from gnomon_platforms.knative.batching.revisions import BufferPlans, RevisionStore, in_force
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT
from gnomon_platforms.kubernetes.client import Api, connect
from gnomon_platforms.nodes.models import ServedModels
from gnomon_server.metrics import readings
from gnomon_server.process import begin_log, serve_until_signal
from gnomon_server.store_changes import StoreChanges

SILENT_S = 90.0
"""Seconds of silence that count as a failed watch: the API server renews a healthy one twice a minute."""
GRACE_S = 300.0
"""The time in seconds that admitted requests may take after SIGTERM: as long as a Revision's requests may take by default.

The drain of a node ends the pods of functions as well, and the requests that wait here are answered once other pods serve."""

_LOG = logging.getLogger("gnomon.knative")


@dataclass(frozen=True, slots=True)
class KnativeGatewayOptions:
    """The options. `namespace` None serves the Revisions of all namespaces; the autoscaler class reads the page at `page_port`.

    `held_s` is how long a request for a still unknown Revision is held. `models` are those that Revisions may name; without them
    (None), batch latency is predicted from observations only.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    policies: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    page_port: int = ACTIVATOR_METRICS_PORT
    held_s: float = HELD_S
    models: ServedModels | None = None


class ScaledByClass:
    """A `ScalingControl` for functions that another process scales; that process reads the waiting requests itself.

    `deployed` is called when a function has new settings: its plan must then be applied again.
    """

    def __init__(self, policies: Policies, deployed: Callable[[FunctionKey], None]) -> None:
        self._policies, self._deployed = policies, deployed

    def check(self, settings: Settings) -> str:
        return scaling_policy(settings.autoscaler, settings, self._policies).default_scheduler

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Accept every profile: the autoscaler class replaces a policy that lacks one."""

    def poke(self, function: str) -> None:
        """Do nothing: the autoscaler class polls the waiting requests, up to twenty times a second."""

    def request(self, function: str, instances: int) -> None:
        """Do nothing: only the autoscaler class requests instances."""

    def redeployed(self, function: str) -> None:
        self._deployed(parse_key(function))

    def served(self, function: str) -> None:
        """Do nothing: the autoscaler class counts failed starts."""

    def start_backoff_s(self, _: str) -> float:
        """Zero: the kubelet has a back-off of its own."""
        return 0.0

    def removed(self, function: str) -> None:
        """Do nothing: there is no state to remove."""

    def desired(self, function: str) -> int | None:
        """None: only the autoscaler class knows the desired number of instances."""

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        del function, limit
        return ()

    def makes_shadows(self, settings: Settings) -> bool:
        """False: the autoscaler class reports Shadows that no node can make."""
        del settings
        return False

    def policies(self) -> Mapping[str, str]:
        return described(self._policies)


class KnativeGateway:
    """The gateway process. `start` returns when requests are accepted, `stop` when all of them are answered."""

    def __init__(self, options: KnativeGatewayOptions, rng: Random, api: Api | None = None) -> None:
        self._options = options
        self._api = api or connect(options.kubeconfig, options.context)
        clock = WallClock()
        self._scaling = ScaledByClass(SCALING.with_named(options.policies), self._plan)
        self._schedulers = SCHEDULING.with_named(options.policies)
        self.store = RevisionStore(self._api, options.namespace, self._check)
        self.platform = RevisionPlatform(self._api, self.store, options.namespace, models=options.models, clock=clock, rng=rng)
        self.plans = BufferPlans(self._api, options.namespace)
        self._logs = LogBook()
        self.manager = Manager(
            self.store,
            self.platform,
            self._scaling,
            logs=self._logs,
            other_replicas=OtherReplicas(leads=False, reports_lost=False),
            schedulers=self._schedulers,
        )
        self._loop_lag = LoopLag(clock)
        self._changes = StoreChanges(clock)
        app = RevisionApp(self.manager.directory, held_s=options.held_s)
        self.server = GatewayServer(app, options.host, options.port, grace_s=GRACE_S)
        collector = GatewayCollector(
            lambda: readings(self.manager, self.manager, lambda _: 0), ControlCounters(), self._loop_lag.histogram
        )
        figures = RevisionMetrics(self.manager.runtimes, self._takes_batches)
        self._pages = page(lambda: self.trouble, figures, MetricsPage([collector]))
        self._page: web.AppRunner | None = None
        self._stopping = False

    @property
    def trouble(self) -> str:
        """The reason why this gateway is not ready for requests, else empty."""
        if self._stopping:
            return "the gateway is stopping"
        silent_s = max(self.store.silent_s, self.platform.silent_s, self.plans.silent_s)
        return f"the API server has been silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    async def start(self) -> None:
        """Watch every Revision that batches, its pods and its plan; then accept requests.

        Raises:
            GnomonError: 503 `kubernetes_…`, `port_in_use`.

        """
        await self.store.start()
        await self.platform.start(self.manager.instances)
        await self.plans.start(self._plan)
        await self.manager.start()
        self._changes.follow(self.store, self.manager.follow)
        self._loop_lag.start()
        await self.server.start()
        self._page = web.AppRunner(self._pages, access_log=None)
        await self._page.setup()
        await web.TCPSite(self._page, self._options.host, self._options.page_port).start()

    async def stop(self) -> None:
        """Drain: answer admitted requests, and those that arrive meanwhile on open connections. The pods keep running."""
        self._stopping = True
        self._logs.close()
        await self.server.stop()
        await self.manager.stop()
        await self.platform.stop()
        await self.plans.stop()
        await self.store.stop()
        await self._loop_lag.stop()
        if self._page is not None:
            await self._page.cleanup()
        self._api.close()

    def _check(self, settings: Settings) -> None:
        scheduler_of(settings, self._scaling, self._schedulers)

    def _plan(self, key: FunctionKey) -> None:
        """Apply the current buffer plan to a Revision's batches, or its own settings without a plan."""
        self.manager.instances.plan_buffer(str(key), in_force(self.plans.of(key), self.store.of(key)))

    def _takes_batches(self, key: FunctionKey) -> bool:
        facts = self.store.of(key)
        return facts is not None and facts.takes_batches


def serve_knative_gateway(options: KnativeGatewayOptions, *, verbose: bool = False) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        GnomonError: 501 without the Kubernetes client, 503 if no cluster is configured.

    """
    begin_log(verbose=verbose)
    uvloop.run(
        serve_until_signal(
            lambda: KnativeGateway(options, SystemRandom()),
            lambda gateway: f"Gnomon buffers Revisions that batch, on port {gateway.server.port}.",
        )
    )


class RevisionMetrics:
    """The metrics of Revisions. `takes_batches` says whether pods of a Revision are sent whole batches."""

    def __init__(self, runtimes: Callable[[], Iterable[FunctionRuntime]], takes_batches: Callable[[FunctionKey], bool]) -> None:
        self._runtimes, self._takes_batches = runtimes, takes_batches
        self._parts: Mapping[str, Callable[[], str]] = {
            signals.FIGURE: lambda: signals.waiting_to_text(self.waiting(), self.beyond_first()),
            signals.SECONDS: lambda: signals.latency_to_text(self.observed_latency()),
        }

    def text(self, names: Iterable[str]) -> str | None:
        """The metrics with these names; None without names or with an unknown one, which means all metrics."""
        named = set(names)
        if not named or not named <= self._parts.keys():
            return None
        return "".join(part() for name, part in self._parts.items() if name in named)

    def whole(self) -> str:
        """All metrics of Revisions."""
        return "".join(part() for part in self._parts.values())

    def waiting(self) -> dict[FunctionKey, int]:
        """The requests here that no pod reports, by Revision."""
        counts = {runtime.key: _not_reported(runtime) for runtime in self._runtimes()}
        return {key: count for key, count in counts.items() if count > 0}

    def beyond_first(self) -> dict[FunctionKey, int]:
        """The requests, since the start, that went to pods in batches beyond the first of each batch, by Revision."""
        sizes = {runtime.key: runtime.metrics.batch_sizes for runtime in self._runtimes()}
        counts = {key: round(size.total) - sum(size.counts) for key, size in sizes.items()}
        return {key: count for key, count in counts.items() if count > 0}

    def observed_latency(self) -> dict[FunctionKey, ObservedLatency]:
        """Learned batch latencies by Revision, if known."""
        found = {}
        for runtime in self._runtimes():
            latency_s = runtime.latency_s() if self._takes_batches(runtime.key) else ()
            if latency_s:
                sizes = {worker.size for worker in runtime.dispatcher.workers.by_id.values()}
                found[runtime.key] = ObservedLatency(latency_s, runtime.latency_spread(sizes))
        return found


def page(trouble: Callable[[], str], figures: RevisionMetrics, others: Callable[[], Awaitable[bytes]]) -> web.Application:
    """The routes. `trouble` is the reason for unreadiness, else empty; `others` are the metrics of every gateway."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text=trouble() or "OK", status=503 if trouble() else 200)

    async def metrics(request: web.Request) -> web.Response:
        text = figures.text(request.query.getall("name[]", []))
        if text is not None:
            return web.Response(text=text)
        body = await others() + figures.whole().encode()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    return application


def _not_reported(runtime: FunctionRuntime) -> int:
    """Requests that wait here, and those under way beyond the first of each batch: queue-proxy reports the first."""
    load = runtime.load()
    return load.queued + max(0, load.executing - len(runtime.all_in_flight()))
