"""The composition root: creates and connects every part of Gnomon that one gateway process runs.

    store ─▶ manager ◀─ request path, API, asynchronous calls, builder
               │ ▲
      platform ┘ └ autoscaler

Parts start from the inside out (store, platform, functions, autoscaler, listener) and stop in the opposite order: requests are
admitted only while all parts that serve them run, and every admitted request is answered before these parts stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import uvloop

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.policies.infaas import workers
from gnomon_autoscaler.policies.infaas.policy import INITIAL, installed_policy
from gnomon_autoscaler.registry import SCALING
from gnomon_core.addresses import from_this_machine, http_url
from gnomon_core.clock import Clock, WallClock, utc_now_s
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import RunsEngines
from gnomon_core.launch import batch_token
from gnomon_gateway.api.access import BasicAuth, Guard, host_rule, read_basic_auth, require_safe_binding
from gnomon_gateway.api.application import control_application
from gnomon_gateway.api.application_port import HOST, ApplicationPort, BatchRoute
from gnomon_gateway.api.builds import BuildRoutes, payload_secret
from gnomon_gateway.api.control import Control, this_version
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.api.models import ModelRoutes
from gnomon_gateway.api.namespaces import Namespaces
from gnomon_gateway.api.secrets import Secrets
from gnomon_gateway.applications.collector import ApplicationCollector
from gnomon_gateway.applications.controller import ApplicationController
from gnomon_gateway.applications.service import Applications, is_endpoint
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Callbacks
from gnomon_gateway.asynchronous.calls import CallStore, Invoke
from gnomon_gateway.asynchronous.endpoint import AsyncEndpoint
from gnomon_gateway.asynchronous.invoker import Invoker
from gnomon_gateway.asynchronous.queue import DEFAULT_RULE, AsyncCollector, AsyncQueue, RetryRule, retry_rule_of
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.functions.service import FunctionStatus
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.metrics import ControlCounters, FunctionReading, GatewayCollector, LoopLag, MetricsPage
from gnomon_gateway.replicas.replica import OwnershipCollector
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_platforms.local.builder import EnvironmentBuilder, Housekeeping
from gnomon_platforms.local.recipes import function_users, private_folders
from gnomon_profiler.repository import open_repository
from gnomon_server.metrics import application_readings, readings
from gnomon_server.model_engines import ModelEngines
from gnomon_server.options import FETCHED, UPLOADS, ServeOptions, payload_secret_file
from gnomon_server.platforms import backend_of
from gnomon_server.process import begin_log, check_disk_space, check_port, lock_state, memory_is_short, serve_until_signal
from gnomon_server.scaling import SavedScalingState, ScalingAdapter

if TYPE_CHECKING:
    from gnomon_server.replicas import Replicas

DEFAULT_USER = "admin"
_Status = Callable[[FunctionKey], FunctionStatus | None]
"""The status of a function; None for one that is not deployed."""
_LOG = logging.getLogger("gnomon")


def serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second signal does not wait for requests in flight.

    `then` is called once serving has begun; if it returns False, serving ends.

    Raises:
        GnomonError: a port, disk or credentials are missing.

    """
    begin_log(verbose=options.verbose)
    for host, port in ((options.host, options.port), (HOST, options.application_port)):
        if port:
            check_port(host, port)
    if options.platform != "openfaas":
        check_disk_space(options.state)
        if short := memory_is_short():
            _LOG.warning("%s Libraries of models are loaded when the first of them is deployed.", short)

    async def meanwhile(gnomon: Gnomon, ended: asyncio.Task[bool]) -> None:
        if then is not None:
            first = asyncio.ensure_future(then(gnomon))
            await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
            if first.done() and not first.result():
                return
            first.cancel()
        await ended
        print("Stopping after the running requests are answered. Ctrl-C again stops at once.", flush=True)

    with lock_state(options.state):
        uvloop.run(serve_until_signal(lambda: Gnomon(options), _serving_line, meanwhile))


def _serving_line(gnomon: Gnomon) -> str:
    port, declared = gnomon.application_port, gnomon.options.application
    own = f" The application {declared.key.name} is at port {port.port}." if port is not None and declared is not None else ""
    return f"Gnomon serves on {gnomon.url}.{own} State is in {gnomon.options.state}."


class Gnomon:
    """The parts of `gnomon serve`. `start` returns when requests are accepted, `stop` when all of them are answered."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self._auth = basic_auth(options)
        require_safe_binding(options.host, self._auth)
        options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        clock = self._clock = WallClock()
        repository = self._repository = open_repository(options.models, options.state / FETCHED)
        builder = self._builder = EnvironmentBuilder(options.state / "built", hidden=(options.state, *private_folders()))
        backend = self._backend = backend_of(options, repository, builder, clock)
        self.platform = backend.platform
        self._housekeeping = Housekeeping(builder, self._named_images, self.platform.contents)
        policies = backend.policies(SCALING.with_named(options.policies))
        # If replicas share the functions, another replica may lead.
        self._replicas: Replicas | None = None
        other_replicas = self._other_replicas = OtherReplicas(leads=not backend.shares)
        scaling = ScalingAdapter(policies, lambda: self.platform.capabilities, other_replicas, self._request_decision)
        self._logs = LogBook()
        latency = LatencyModels()
        self._corrections = latency.keep(options.state / "corrections.json", backend.place, clock)
        self.manager = Manager(
            backend.store,
            self.platform,
            scaling,
            latency,
            self._logs,
            fetch_model=backend.fetch_model,
            other_replicas=other_replicas,
            epoch=backend.epoch,
            schedulers=SCHEDULING.with_named(options.policies),
        )
        self.autoscaler = Autoscaler(self.manager.instances, clock, policies=policies)
        scaling.bind(self.autoscaler)
        self._scaling_state = SavedScalingState(self.autoscaler, options.state)
        self.applications: Applications | None = None
        """The applications; None where the platform has none."""
        self._loop_lag = LoopLag(clock)
        self._async_queue, self._callbacks = _asynchronous(
            options,
            lambda invocation: self._invoke(invocation),  # noqa: PLW0108 - several gateways replace it below
            self.manager.status,
            clock,
        )
        self._invoke: Invoke = Invoker(self.manager.directory)
        self._app = self._application()
        if backend.shares:
            self._replicas = self._share(other_replicas, scaling)
        served = self._app if self._replicas is None else self._replicas.app
        self.server = GatewayServer(served, options.host, options.port)
        self.application_port = self._application_port()
        self._tasks: list[asyncio.Task[None]] = []
        self._started = self._stopping = False

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return http_url(from_this_machine(self.options.host), self.server.port)

    async def start(self) -> None:
        """Start serving all stored functions; on a cluster, once this process leads."""
        self.server.port = await self._backend.begin(self.server.port)
        await self._namespaces.refresh()
        self._started = True
        await self.platform.start(self.manager.instances)
        if self._other_replicas.leads:
            await self._namespaces.ensure(self.options.namespaces)
        self._scaling_state.restore()
        await asyncio.to_thread(self._corrections.load)
        if self.applications is None:
            await self.manager.start()
        else:
            await self.manager.start(is_endpoint)
            await self.applications.start()
            controller = ApplicationController(
                self.applications, self.manager, installed_policy(), INITIAL, self._clock, decide_workers=workers.decide
            )
            self._tasks += [asyncio.create_task(controller.run())]
            if self.options.application is not None:
                await self.applications.declare(self.options.application)
        self._backend.follow(self.manager, self._namespaces.refresh)
        self._tasks += [asyncio.create_task(self._corrections.run())]
        if self._other_replicas.leads:
            self._tasks += [asyncio.create_task(self.autoscaler.run())]
        self._start_housekeeping()
        await self._async_queue.start()
        self._loop_lag.start()
        await self._backend.release_port()
        if self._replicas is not None:
            await self._replicas.start(self._lead)
        # Last, so that the first accepted request finds every part running.
        await self.server.start()
        if self.application_port is not None:
            await self.application_port.start()

    async def _lead(self) -> None:
        """Start to scale functions: this process has become the leader of several replicas."""
        await self._backend.lead()
        self._other_replicas.leads = True
        await self._namespaces.ensure(self.options.namespaces)
        await self.manager.lead()
        self._tasks += [asyncio.create_task(self.autoscaler.run())]

    async def stop(self) -> None:
        """Stop admission, answer all admitted requests, and end every instance; on a cluster, the pods keep running."""
        if self.application_port is not None:
            await self.application_port.stop()
        self._stopping = True
        # What takes minutes and answers no request to a function: builds, and captures of models.
        await self._builds.end()
        self._backend.leave()
        if self._replicas is None:
            self._app.draining = True
        elif self._started:
            self.server.announce_end()
            await self._replicas.leave()
        if self._started:
            await self._stop_serving()
        await self._backend.end()

    async def _stop_serving(self) -> None:
        self._logs.close()
        # First, so that every admitted request is answered while its instances still run.
        await self.server.stop()
        await self._async_queue.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._scaling_state.save()
        await asyncio.to_thread(self._corrections.save)
        if self.applications is not None:
            await self.applications.stop()
        await self.manager.stop()
        await self.platform.stop()
        if self._replicas is not None:
            await self._replicas.stop()
        await self._loop_lag.stop()

    def _start_housekeeping(self) -> None:
        """Remove built handlers that no function uses any more and convert models, now and whenever a function changes."""
        loop = asyncio.get_running_loop()
        followers: list[Housekeeping | ModelEngines] = [self._housekeeping]
        if self.options.convert and isinstance(self.platform, RunsEngines):
            folder, store = self.options.model_folder, self._backend.store
            engines = ModelEngines(self._repository, folder, store, self.manager, self._logs, applications=self.applications)
            followers.append(engines)
            if self.applications is not None:
                self.applications.models_changed = engines.trigger

        def changed(_: FunctionKey) -> None:
            # The store calls this in the thread of the write, where the loop must not be touched.
            for follower in followers:
                loop.call_soon_threadsafe(follower.trigger)

        self._backend.store.watch(changed)
        self._tasks += [asyncio.create_task(follower.run()) for follower in followers]

    def _named_images(self) -> set[str]:
        """The images of stored functions, including those that cannot be served now."""
        return {stored.spec.image for stored in self._backend.store.functions()}

    def _application(self) -> GatewayApp:
        counters = ControlCounters()
        functions, metadata = self._backend.functions(self.manager), self._backend.metadata
        self._namespaces = Namespaces(self._backend.store)
        if metadata is not None:
            self.applications = functions = Applications(functions, self.manager, self._backend.store, metadata)
        control = Control(
            functions=functions,
            namespaces=self._namespaces,
            secrets=Secrets(self._backend.store),
            logs=self._logs,
            metrics=MetricsPage(
                [
                    GatewayCollector(
                        self._readings,
                        counters,
                        self._loop_lag.histogram,
                        behind=self.options.behind,
                    ),
                    AsyncCollector(self._async_queue, self._callbacks),
                    ApplicationCollector(lambda: self.applications),
                    *self._backend.collectors(),
                    OwnershipCollector(lambda: None if self._replicas is None else self._replicas.agent),
                ]
            ),
            version=this_version(),
            now_s=self._clock.now_s,
            healthy=lambda: not self._stopping,
            orchestration=self._backend.orchestration,
            kept_logs=self._backend.stored_logs,
            applications=self.applications,
            behind=self.options.behind,
            provided=self._backend.provided,
        )
        asynchronous = AsyncEndpoint(self._async_queue, self._callbacks, lambda key: functions.status(key) is not None, utc_now_s)
        self._builds = BuildRoutes(self._builder, payload_secret(payload_secret_file(self.options.state)))
        models = ModelRoutes(self._repository, self.options.state / UPLOADS, max_bytes=self.options.max_model_bytes)
        hosts = host_rule(self.options.host, self.options.allowed_hosts, behind=self.options.behind)
        self._guard = Guard(hosts, self._auth, function_users() if self._backend.isolates_users else range(0))
        application = control_application(
            control, self._guard, counters, [asynchronous.handlers(), models.handlers(), *self._builds.routes()]
        )
        return GatewayApp(
            self.manager.directory,
            application,
            max_body_bytes=self.options.max_body_bytes,
            behind=self.options.behind,
            ready=self.manager.all_been_ready,
        )

    def _application_port(self) -> ApplicationPort | None:
        """The port of the application that a file declares, if it has one."""
        applications, declared, port = self.applications, self.options.application, self.options.application_port
        if applications is None or declared is None or port is None:
            return None
        batches = BatchRoute(Invoker(self.manager.directory), declared.key, batch_token(os.environ))
        return ApplicationPort(self._app, declared.key, batches, lambda: applications.settled(declared.key), port)

    def _readings(self) -> Iterator[FunctionReading]:
        decided = self.autoscaler.decided
        if self.applications is None:
            yield from readings(self._backend.functions(self.manager), self.manager, decided)
        else:
            yield from readings(self.applications, self.manager, decided)
            yield from application_readings(self.applications, self.manager, decided)

    def _share(self, other_replicas: OtherReplicas, scaling: ScalingAdapter) -> Replicas:
        """Share the functions with the cluster's other gateways."""
        from gnomon_server.kubernetes import ClusterBackend  # noqa: PLC0415 - the client is an extra of its own
        from gnomon_server.replicas import Replicas  # noqa: PLC0415 - likewise

        cluster = self._backend
        assert isinstance(cluster, ClusterBackend)
        replicas = Replicas(
            cluster,
            self._clock,
            self.manager,
            other_replicas,
            self._app,
            guard=self._guard,
            autoscaler=self.autoscaler,
            scaling=scaling,
        )
        self._invoke = replicas.invoke(self._invoke)
        return replicas

    def _request_decision(self, function: str) -> None:
        """Ask the leader for a decision on this function."""
        if self._replicas is not None:
            self._replicas.request_decision(function)


def basic_auth(options: ServeOptions) -> BasicAuth | None:
    """The credentials of control routes; None without authentication. Missing ones are generated once, in the state folder."""
    if not options.basic_auth:
        return None
    folder = options.secrets or options.state / "secrets"
    if options.secrets is None:
        _make(folder)
    return read_basic_auth({"basic_auth": "true", "secret_mount_path": str(folder)})


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, value in (("basic-auth-user", DEFAULT_USER), ("basic-auth-password", secrets.token_urlsafe(24))):
        try:
            # O_EXCL: existing credentials are never replaced, and no other user can read the file at any moment.
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w") as file:
            file.write(value)


def _asynchronous(options: ServeOptions, invoke: Invoke, status: _Status, clock: Clock) -> tuple[AsyncQueue, Callbacks]:
    """The queue of asynchronous calls, and the callbacks that report their results."""

    def retry_rule(key: FunctionKey) -> RetryRule:
        found = status(key)
        return retry_rule_of(key, found.spec.annotations) if found is not None else DEFAULT_RULE

    callbacks = Callbacks(CallbackHosts(options.callback_hosts), SystemRandom())
    calls = CallStore(options.state / "calls.db")
    return AsyncQueue(calls, invoke, callbacks, retry_rule, clock=clock, rng=SystemRandom()), callbacks
