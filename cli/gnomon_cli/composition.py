"""The composition root: every part of Gnomon on this machine, made once and joined here.

    store ─▶ manager ◀─ request path, API, asynchronous calls, builder
               │ ▲
      platform ┘ └ autoscaler

Starting happens inside out (store, platform, functions, autoscaler, listener), stopping the other way round, so that a request is
let in only while everything behind it works, and everything let in is answered before what answers it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import SCALING, provided
from gnomon_cli.asynchronous import asynchronous
from gnomon_cli.cluster_metrics import ClusterCollector
from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_cli.fetching import ModelFetcher
from gnomon_cli.in_front import InFront
from gnomon_cli.kept_scaling import KeptScaling
from gnomon_cli.platforms import platform_of
from gnomon_cli.scaling import ScalingAdapter
from gnomon_cli.serve_secrets import basic_auth
from gnomon_cli.state import FETCHED
from gnomon_cli.where import cluster_of, in_images, orchestration, place, readings
from gnomon_core.addresses import from_this_machine, http_url
from gnomon_core.clock import WallClock, utc_now_s
from gnomon_core.functions import FunctionKey
from gnomon_gateway.api.application import control_application
from gnomon_gateway.api.control import Control
from gnomon_gateway.api.guard import Guard
from gnomon_gateway.app import GatewayApp
from gnomon_gateway.asynchronous.endpoint import AsyncEndpoint
from gnomon_gateway.asynchronous.invocation import Invoke
from gnomon_gateway.auth import require_safe_binding
from gnomon_gateway.build_api import build_routes, payload_secret
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.context import Surroundings
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import Corrections, ProfiledLatency
from gnomon_gateway.http.origin import host_rule
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.inside_call import Invoker
from gnomon_gateway.logs import LogBook
from gnomon_gateway.metrics import AsyncCollector, ControlCounters, GatewayCollector, LoopLag, MetricsPage, OwnershipCollector
from gnomon_gateway.namespaces import Namespaces
from gnomon_gateway.replicas.state_sync import Elsewhere
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_gateway.secrets import Secrets
from gnomon_gateway.service import FunctionService
from gnomon_gateway.store.sqlite import SqliteStore
from gnomon_gateway.version import this_version
from gnomon_platforms.local.builder import EnvironmentBuilder, Housekeeping
from gnomon_platforms.local.recipes import function_users, private_folders
from gnomon_profiler.places import open_repository

if TYPE_CHECKING:
    from gnomon_cli.on_kubernetes import OnKubernetes
    from gnomon_cli.replicas import Replicas

_LOG = logging.getLogger("gnomon")


class Gnomon:
    """Everything that `gnomon serve` runs. `start` returns when requests are accepted, `stop` when all of them are answered."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self._auth = basic_auth(options)
        require_safe_binding(options.host, self._auth)
        options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        clock = self._clock = WallClock()
        repository = open_repository(options.models, options.state / FETCHED)
        self._cluster = cluster_of(options, repository, clock)
        self._front = InFront(options.provider, clock) if options.provider is not None else None
        keeper = self._keeper = self._cluster or self._front
        self._store = SqliteStore(options.state / "functions.db") if keeper is None else keeper.store
        builder = self._builder = EnvironmentBuilder(options.state / "built", hidden=(options.state, *private_folders()))
        self.platform = platform_of(options, repository, builder, clock) if keeper is None else keeper.platform
        self._housekeeping = Housekeeping(builder, self._named_images, self.platform.contents)
        policies = SCALING.with_named(options.policies)
        policies = policies if self._front is None else provided(policies)
        # Where replicas share the functions, another one may lead.
        self._leads = self._cluster is None or not self._cluster.shares
        self._replicas: Replicas | None = None
        elsewhere = Elsewhere(lambda: self._leads)
        scaling = ScalingAdapter(policies, lambda: self.platform.capabilities, elsewhere.leads, self._want)
        self._logs = LogBook(utc_now_s)
        profiled = ProfiledLatency()
        latency = LearnedLatency(profiled)
        self._corrections = Corrections(options.state / "corrections.json", place(options), latency, clock)
        self.manager = Manager(
            Surroundings(
                store=self._store,
                platform=self.platform,
                scaling=scaling,
                latency=latency,
                profiled=profiled,
                corrections=self._corrections,
                logs=self._logs,
                fetch_model=ModelFetcher(repository).fetch if keeper is None else in_images,
                now=utc_now_s,
                elsewhere=elsewhere,
                epoch=(lambda: 1) if self._cluster is None else self._cluster.epoch,
                makes_shadows=scaling.makes_shadows,
                schedulers=SCHEDULING.with_named(options.policies),
            )
        )
        self.autoscaler = Autoscaler(self.manager.instances, clock, policies=policies)
        scaling.bind(self.autoscaler)
        self._kept_scaling = KeptScaling(self.autoscaler, options.state)
        self._loop_lag = LoopLag(clock)
        self._async_queue, self._callbacks = asynchronous(
            options,
            lambda invocation: self._invoke(invocation),  # noqa: PLW0108 - where there are several gateways, it is another one later
            self.manager.status,
            clock,
        )
        self._invoke: Invoke = Invoker(self.manager)
        self._app = self._application()
        if self._cluster is not None and self._cluster.shares:
            self._replicas = self._share(self._cluster, elsewhere, scaling)
        served = self._app if self._replicas is None else self._replicas.app
        self.server = GatewayServer(served, options.host, options.port)
        self._tasks: list[asyncio.Task[None]] = []
        self._started = self._stopping = False

    @property
    def url(self) -> str:
        """Where clients on this machine reach it."""
        return http_url(from_this_machine(self.options.host), self.server.port)

    async def start(self) -> None:
        """Begin to serve, with every function that was deployed before; on a cluster, once this process leads."""
        if self._cluster is not None:
            await self._cluster.begin()
            self.server.port = self._cluster.port
            await self._namespaces.refresh()
        self._started = True
        await self.platform.start(self.manager.instances)
        if self._leads:
            await self._namespaces.ensure(self.options.namespaces)
        self._kept_scaling.restore()
        await asyncio.to_thread(self._corrections.load)
        await self.manager.start()
        if self._cluster is not None:
            self._cluster.follow(self.manager.follow, self._namespaces.refresh)
        if self._front is not None:
            self._front.follow(self._namespaces.refresh)
        self._tasks += [asyncio.create_task(self._corrections.run())]
        if self._leads:
            self._tasks += [asyncio.create_task(self.autoscaler.run())]
        self._keep_house()
        await self._async_queue.start()
        self._loop_lag.start()
        if self._cluster is not None:
            await self._cluster.take_port()
        if self._replicas is not None:
            await self._replicas.start(self._lead)
        await self.server.start()

    async def _lead(self) -> None:
        """Decide from now on: this process has become the leader of several."""
        assert self._cluster is not None
        await self._cluster.catch_up()
        await self._cluster.platform.lead()
        self._leads = True
        await self._namespaces.ensure(self.options.namespaces)
        await self.manager.lead()
        self._tasks += [asyncio.create_task(self.autoscaler.run())]

    async def stop(self) -> None:
        """Let nothing more in, answer everything, end every process; on a cluster, leave the pods serving."""
        self._stopping = True
        if self._cluster is not None:
            self._cluster.leader.leave()
        if self._replicas is None:
            self._app.draining = True
        elif self._started:
            self.server.announce_end()
            await self._replicas.leave()
        if self._started:
            await self._stop_serving()
        if self._cluster is not None:
            await self._cluster.end()
        else:
            await asyncio.to_thread(self._store.close)

    async def _stop_serving(self) -> None:
        self._logs.close()
        await self.server.stop()
        await self._async_queue.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._kept_scaling.save()
        await asyncio.to_thread(self._corrections.save)
        await self.manager.stop()
        await self.platform.stop()
        if self._replicas is not None:
            await self._replicas.stop()
        await self._loop_lag.stop()

    def _keep_house(self) -> None:
        """Remove what was built and is not used any more, now and whenever a function changes."""
        loop = asyncio.get_running_loop()

        def changed(_: FunctionKey) -> None:
            # The store tells it in the thread that wrote.
            loop.call_soon_threadsafe(self._housekeeping.look_again)

        self._store.watch(changed)
        self._tasks.append(asyncio.create_task(self._housekeeping.run()))

    def _named_images(self) -> set[str]:
        """What stored functions name, also those that could not be served again."""
        return {stored.spec.image for stored in self._store.functions()}

    def _application(self) -> GatewayApp:
        counters = ControlCounters()
        self._functions: FunctionService = self.manager if self._front is None else self._front.functions(self.manager)
        self._namespaces = Namespaces(self._store)
        control = Control(
            functions=self._functions,
            namespaces=self._namespaces,
            secrets=Secrets(self._store),
            logs=self._logs,
            metrics=MetricsPage(
                [
                    GatewayCollector(
                        lambda: readings(self._functions, self.manager, self.autoscaler.decided),
                        counters,
                        self._loop_lag.histogram,
                        behind=self.options.behind,
                    ),
                    AsyncCollector(self._async_queue, self._callbacks),
                    ClusterCollector(self._cluster),
                    OwnershipCollector(lambda: None if self._replicas is None else self._replicas.life),
                ]
            ),
            version=this_version(),
            now_s=self._clock.now_s,
            healthy=lambda: not self._stopping,
            orchestration=orchestration(self.options),
            kept_logs=None if self._keeper is None else self._keeper.platform.logs,
            behind=self.options.behind,
            provided=self._front is not None,
        )
        asynchronous = AsyncEndpoint(
            self._async_queue, self._callbacks, lambda key: self.manager.status(key) is not None, utc_now_s
        )
        build = build_routes(self._builder, payload_secret(self.options.state / "payload-secret"))
        hosts = host_rule(self.options.host, self.options.allowed_hosts, behind=self.options.behind)
        self._guard = Guard(hosts, self._auth, function_users() if self._keeper is None else range(0))
        application = control_application(control, self._guard, counters, [asynchronous.handlers(), *build])
        return GatewayApp(
            self.manager,
            application,
            max_body_bytes=self.options.max_body_bytes,
            behind=self.options.behind,
            ready=self.manager.all_been_ready,
        )

    def _share(self, cluster: OnKubernetes, elsewhere: Elsewhere, scaling: ScalingAdapter) -> Replicas:
        """Share the functions with the cluster's other gateways."""
        from gnomon_cli.replicas import Replicas  # noqa: PLC0415 - the client is an extra of its own

        autoscaler = self.autoscaler
        replicas = Replicas(
            cluster, self._clock, self.manager, elsewhere, self._app, guard=self._guard, autoscaler=autoscaler, scaling=scaling
        )
        self._invoke = replicas.invoke(self._invoke)
        return replicas

    def _want(self, function: str) -> None:
        """Whoever leads is to look at this function."""
        if self._replicas is not None:
            self._replicas.want(function)
