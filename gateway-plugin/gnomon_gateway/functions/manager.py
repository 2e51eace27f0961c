"""The functions of this gateway, and the API's operations on them.

A command is validated in full before anything changes, is durable when it returns, and its effects continue in the background.
Commands for one function run one after the other; those for different functions run concurrently.

A stored function that cannot be served, for example because its secret was deleted, is retried (`PendingRestore`). Meanwhile the
API lists the function without replicas, and calls get 503: a temporary failure is no 404.

Member functions of applications (`applications`) are neither stored nor listed: their application deploys them at each start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from weakref import WeakValueDictionary

from gnomon_core.background import Background
from gnomon_core.clock import utc_now_s
from gnomon_core.errors import GnomonError, conflict
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Explains, FunctionStore, LendsCores, Platform, Restartable, StoredFunction
from gnomon_core.policy_registry import described
from gnomon_core.profiles import REREAD_S
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.functions.deployments import Deployed, OtherReplicas, StartFailures
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime, lanes, latency_key
from gnomon_gateway.functions.instances import Instances, ScalingControl, outlive_gateway, refuse_foreign_autoscaler
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.pending_restore import MOST_ATTEMPTS, PendingRestore
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus, KnownPolicies, unknown_function
from gnomon_gateway.functions.validation import ANSWER_S, MODEL_NOT_HERE, Checks, FunctionInputs, ShadowNotice
from gnomon_gateway.scheduling.registry import BUILT_IN, Schedulers

MOST_REREADS = 8
"""Concurrent reads of profiles: a quarter of the gateway's worker threads."""
REREAD_LIMIT_S = 20.0
"""After this time a profile is reported as late, and nothing waits for it any more."""
_LOG = logging.getLogger("gnomon.functions")


class Manager:
    """A `FunctionService`. `directory` is the request path's look-up of names.

    `fetch_model` brings a model into the repository; None if there is nowhere to fetch one from. `now` gives seconds since 1970.
    """

    def __init__(
        self,
        store: FunctionStore,
        platform: Platform,
        scaling: ScalingControl,
        latency: LatencyModels | None = None,
        logs: LogBook | None = None,
        *,
        fetch_model: Callable[[str], Awaitable[None]] | None = None,
        now: Callable[[], float] = utc_now_s,
        schedulers: Schedulers = BUILT_IN,
        other_replicas: OtherReplicas | None = None,
        epoch: Callable[[], int] = lambda: 1,
    ) -> None:
        self._store = store
        self._platform = platform
        self._scaling = scaling
        self._latency = latency = latency or LatencyModels()
        self._logs = logs = logs or LogBook()
        self._now = now
        self._schedulers = schedulers
        self._other_replicas = other_replicas or OtherReplicas()
        self._epoch = epoch
        self._checks = Checks(store, platform, scaling, fetch_model, schedulers)
        self._shadow_notice = ShadowNotice(platform, scaling, self._other_replicas, logs)
        self._functions: dict[FunctionKey, Deployed] = {}
        self._locks: WeakValueDictionary[FunctionKey, asyncio.Lock] = WeakValueDictionary()
        """The locks that commands hold or wait for; others are garbage-collected."""
        self._last_version = 0
        self._profile_refresh = ProfileRefresh(self._checks, latency, self._functions, self._is_changing)
        self._pending_restore = PendingRestore(self._restore, self.follow, logs.append)
        self.directory = FunctionDirectory(self._pending_restore.refusal)
        self.members: set[FunctionKey] = set()
        self._background = Background()
        if isinstance(platform, Restartable):
            platform.watch_restarts(self._restarts)
        self.instances = Instances(platform, logs.append, scaling, self._checks.policy, self._other_replicas)

    async def start(self, served_elsewhere: Callable[[FunctionSpec], bool] = lambda _: False) -> None:
        """Serve the stored functions. A function that cannot be served stays stored, and its log has the reason.

        A function that takes long to serve, because its model store hangs, does not delay this: it is served later.
        Functions that are `served_elsewhere`, the endpoints of applications, are skipped.
        """
        stored = await asyncio.to_thread(self._store.functions)
        self._last_version = max((function.version for function in stored), default=0)
        await self._pending_restore.start(function for function in stored if not served_elsewhere(function.spec))
        self._profile_refresh.start()

    async def lead(self) -> None:
        """Become the leader: continue from the stored functions and the instances that another process has left.

        Functions that are not served yet are taken over when they are.
        """
        stored = await asyncio.to_thread(self._store.functions)
        keys = ({function.spec.key for function in stored} | set(self._functions)) - self.members - set(self._pending_restore)
        # Side by side, because reading a function's model or profile may take until a timeout.
        turns = asyncio.Semaphore(MOST_ATTEMPTS)
        await asyncio.gather(*(self._take_over(key, turns) for key in keys | self.members))
        self.instances.lead()

    async def stop(self) -> None:
        """Answer every admitted request, then stop all instances, except those that outlive the gateway."""
        await self._background.end()
        await self._pending_restore.stop()
        await self._profile_refresh.stop()
        for deployed in list(self._functions.values()):
            self.instances.release(deployed, leave=outlive_gateway(self._platform))
        for key in list(self._functions):
            self.directory.remove(key)
        self._functions.clear()
        await self.instances.settle()

    def runtimes(self) -> Sequence[FunctionRuntime]:
        """Every function's runtime, for the metrics."""
        return [deployed.runtime for deployed in self._functions.values()]

    def all_been_ready(self) -> bool:
        """Return whether each function that should have an instance has one, or has had one since it was deployed."""
        return all(
            deployed.been_ready or deployed.runtime.ready > 0 or not self._wanted(deployed)
            for deployed in self._functions.values()
        )

    # FunctionService

    async def deploy(self, spec: FunctionSpec) -> None:
        spec = self._with_defaults(spec)
        async with self._command(spec.key):
            if spec.key in self._functions or spec.key in self._pending_restore:
                raise conflict("function_exists", f"{spec.key} is deployed already.", "Send a PUT to change it.")
            self._scaling.removed(str(spec.key))  # state kept under this name belongs to a removed function
            await self._put(spec, self._now())

    async def update(self, spec: FunctionSpec) -> None:
        spec = self._with_defaults(spec)
        async with self._command(spec.key):
            deployed = self._functions.get(spec.key)
            if deployed is None:
                await self._update_pending(spec)
                return
            # Everything that can refuse the deployment comes before anything changes.
            inputs = await self._checks.spec(spec, patience_s=ANSWER_S)
            self._scaling.check_profile(spec.settings, inputs.profile)
            alike = (inputs.revision, inputs.secrets) == (deployed.revision, deployed.secrets)
            same = alike and spec.same_instances(deployed.spec)
            if not same:
                refuse_foreign_autoscaler(self._platform, deployed.name)
                await self._platform.prepare(spec)
                self._last_version += 1
            version = deployed.version if same else self._last_version
            # Durable before it takes effect, so that a crash in between serves what the client was told.
            stored = StoredFunction(spec, version, deployed.created_at)
            await self._keep(stored)
            if self._needs_own_queue(deployed, inputs):
                await self._replace(deployed, stored, inputs)
                return
            self._change(deployed, spec, inputs)
            if not same:
                deployed.version = version
                deployed.runtime.forget_latency()
                await self.instances.rolling_update.update(deployed)
            self._scaling.redeployed(deployed.name)

    async def renew(self, key: FunctionKey) -> None:
        """Replace the instances of a function whose image or model now resolves to something else, as an update does."""
        deployed = self._functions.get(key)
        if deployed is not None and self._other_replicas.leads:
            await self.update(deployed.spec)

    async def remove(self, key: FunctionKey) -> None:
        async with self._command(key):
            if key not in self._functions and key not in self._pending_restore:
                raise unknown_function(key)
            # From the disk first: a function that is answered as removed must not be back after a crash.
            if key not in self.members:
                await asyncio.to_thread(self._store.delete_function, key)
            self._drop(key)

    async def deploy_member(self, spec: FunctionSpec) -> FunctionRuntime:
        """Add or update a member function of an application.

        Raises:
            GnomonError: 409 `function_exists` where a function of another user has the name; as for `deploy`.

        """
        key = spec.key
        if key in self._functions and key in self.members:
            await self.update(spec)
        elif key in self._functions or key in self._pending_restore:
            raise conflict("function_exists", f"{key} is deployed already.", "Remove it, or give the application another name.")
        else:
            self.members.add(key)
            try:
                await self.deploy(spec)
            except BaseException:
                # The name must stay free for other users if the deployment failed.
                self.members.discard(key)
                raise
        return self._functions[key].runtime

    def check_policy(self, settings: Settings) -> None:
        """Raise a 400 `GnomonError` for policies that functions here cannot have."""
        self._checks.policy(settings)

    async def inputs(self, spec: FunctionSpec, *, patience_s: float | None = None) -> FunctionInputs:
        """Check a function that is not deployed, and return its inputs. Its model may take `patience_s` or `ANSWER_S` to come.

        Raises:
            GnomonError: 400, with what is wrong; 503 `model_not_here`.

        """
        return await self._checks.spec(self._with_defaults(spec), patience_s=ANSWER_S if patience_s is None else patience_s)

    def _restarts(self, key: FunctionKey, version: int) -> None:
        self._background.begin(self.restart(key, version))

    async def restart(self, key: FunctionKey, version: int) -> None:
        """Replace all instances of this version by new ones, as a rolling update does: no fewer serve meanwhile."""
        async with self._lock(key):
            deployed = self._functions.get(key)
            if deployed is None or deployed.version != version or not self._other_replicas.leads:
                return
            deployed.version = (await self._keep_new(deployed.spec, deployed.created_at)).version
            await self.instances.rolling_update.update(deployed)
            self._scaling.redeployed(deployed.name)

    async def follow(self, key: FunctionKey, *, takes_over: bool = False) -> None:
        """Apply the stored state of a function that another process has added, changed or removed.

        Changes that this process made itself are served already, so nothing happens. Only the leader changes instances; a
        replica follows whatever the leader has stored.
        """
        async with self._lock(key):
            # Read within the lock: the store may have changed while another command held it.
            stored = {function.spec.key: function for function in await asyncio.to_thread(self._store.functions)}.get(key)
            deployed = self._functions.get(key)
            if stored is None:
                self._drop(key)
            else:
                self._last_version = max(self._last_version, stored.version)
                if deployed is None:
                    await self._serve(stored)
                elif (stored.version, stored.spec.raw) != (deployed.version, deployed.spec.raw):
                    await self._follow_update(deployed, stored, takes_over=takes_over)

    async def _follow_update(self, deployed: Deployed, stored: StoredFunction, *, takes_over: bool) -> None:
        """Use the deployment that another process has stored. That process also replaces the instances, until this one leads."""
        if self._other_replicas.leads and not takes_over and stored.version <= deployed.version:
            return  # a watch of the store may lag behind this process's own writes
        self._change(deployed, self._with_defaults(stored.spec), await self._checks.inputs(stored.spec))
        if stored.version != deployed.version:
            deployed.runtime.forget_latency()
        deployed.version, deployed.created_at = stored.version, stored.created_at
        if not takes_over:
            await self.instances.take_over(deployed)
            self._scaling.redeployed(deployed.name)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        if (deployed := self._functions.get(key)) is None:
            raise self._pending_restore.refusal(str(key)) or unknown_function(key)
        if not replicas:
            # Else a rolling update would keep the old instances that the operator wants to end.
            deployed.keep_old = 0
            self.instances.rolling_update.retire(deployed)
        self._scaling.request(deployed.name, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        if (deployed := self._functions.get(key)) is None:
            return self._pending_restore.status(key)
        return FunctionStatus(
            spec=deployed.spec,
            created_at=deployed.created_at,
            replicas=self._wanted(deployed),
            available_replicas=deployed.runtime.ready,
            invocation_count=deployed.runtime.metrics.invocations + self._other_replicas.of(deployed.name).invocations,
            usage=self._platform.usage(deployed.name) if usage else None,
            problem=self._problem(deployed),
        )

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        deployed, status = self._functions.get(key), self.status(key)
        if deployed is None or status is None:
            return self._pending_restore.detail(key)
        runtime = deployed.runtime
        return FunctionDetail(
            status=status,
            scheduler=runtime.policy.name,
            instances=self.instances.seen(deployed.name),
            largest=runtime.largest_batches(),
            pairs=runtime.metrics.pairs,
            profile=runtime.profile(),
            notice=self._shadow_notice.text(deployed.spec),
            engine=deployed.engine,
            version=deployed.version,
            cannot_start=not runtime.starting and deployed.start_failures.final(len(self.instances.of(deployed))),
        )

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        known = (key for key in (*self._functions, *self._pending_restore) if key not in self.members)
        keys = sorted(key for key in known if key.namespace == namespace)
        return [status for key in keys if (status := self.status(key)) is not None]

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        return self._scaling.decisions(str(key), limit) if self.status(key) is not None else None

    def policies(self) -> KnownPolicies:
        return KnownPolicies(self._scaling.policies(), described(self._schedulers))

    # Steps of the commands

    async def _restore(self, stored: StoredFunction) -> None:
        """Serve a function that is stored when the gateway starts."""
        async with self._lock(stored.spec.key):
            await self._serve(stored)

    async def _take_over(self, key: FunctionKey, turns: asyncio.Semaphore) -> None:
        """Continue another leader's work on this function, which is a member or stored."""
        async with turns:
            if key not in self.members:
                try:
                    await self.follow(key, takes_over=True)
                except Exception as error:  # noqa: BLE001 - one function must not prevent the others from being served
                    self._logs.append(key, "", f"gnomon: the changed deployment of {key} cannot be served: {error}")
            if (deployed := self._functions.get(key)) is None:
                return
            await self._profile_refresh.refresh(deployed)
            self._shadow_notice.report(deployed.spec)
            await self.instances.take_over(deployed)
            self._scaling.redeployed(deployed.name)

    async def _serve(self, stored: StoredFunction) -> None:
        stored = replace(stored, spec=self._with_defaults(stored.spec))
        key = stored.spec.key
        try:
            inputs = await self._checks.spec(stored.spec, again=True)
            self._begin(stored, inputs)
            # The platform prepared the function when it was deployed. Preparing again takes seconds, so requests need not wait.
            self._background.begin(self._prepare_again(stored))
            await self.instances.take_over(self._functions[key])
        except Exception as error:  # noqa: BLE001 - one function must not prevent the others from being served
            if key in self._functions:
                self._logs.append(key, "", f"gnomon: the running instances of {key} could not be adopted: {error}")
            else:
                self._pending_restore.add(stored, str(error))

    async def _prepare_again(self, stored: StoredFunction) -> None:
        try:
            await self._platform.prepare(stored.spec)
        except Exception as error:  # noqa: BLE001 - creating an instance will report the same error
            self._logs.append(stored.spec.key, "", f"gnomon: {stored.spec.key} could not be prepared: {error}")

    async def _put(self, spec: FunctionSpec, created_at: float) -> None:
        """Store a function that is not served yet, and serve it: later, if its model takes long to come to this machine."""
        try:
            inputs = await self._checks.spec(spec, patience_s=ANSWER_S)
        except GnomonError as error:
            # An application needs its members served when this returns, and deploys them again otherwise.
            if error.code != MODEL_NOT_HERE or spec.key in self.members:
                raise
            self._pending_restore.add(await self._keep_new(spec, created_at), error.message)
            return
        self._scaling.check_profile(spec.settings, inputs.profile)
        await self._platform.prepare(spec)
        self._begin(await self._keep_new(spec, created_at), inputs)

    async def _keep_new(self, spec: FunctionSpec, created_at: float) -> StoredFunction:
        """Store a deployment as the newest version."""
        self._last_version += 1
        stored = StoredFunction(spec, self._last_version, created_at)
        await self._keep(stored)
        return stored

    async def _keep(self, stored: StoredFunction) -> None:
        """Store a deployment, unless it is a member's."""
        if stored.spec.key not in self.members:
            await asyncio.to_thread(self._store.put_function, stored)

    async def _update_pending(self, spec: FunctionSpec) -> None:
        """Update a function that cannot be served as it is stored."""
        if (stored := self._pending_restore.get(spec.key)) is None:
            raise unknown_function(spec.key)
        refuse_foreign_autoscaler(self._platform, str(spec.key))
        await self._put(spec, stored.created_at)
        if (deployed := self._functions.get(spec.key)) is not None:
            await self.instances.take_over(deployed)

    def _needs_own_queue(self, deployed: Deployed, inputs: FunctionInputs) -> bool:
        """Return whether the present instances cannot execute requests of the new deployment.

        Never so for instances that outlive the gateway: their platforms have no signatures, because requests reach the program
        in the image unread. A new pod takes seconds to minutes to start, or never does, so a queue that waits for it would be
        an outage; a Revision of Knative has a queue of its own anyway. A member of an application keeps its model.
        """
        present, new = deployed.runtime.signature, inputs.signature
        alike = new is None if present is None else present.takes_requests_of(new)
        return not (alike or outlive_gateway(self._platform) or deployed.spec.key in self.members)

    async def _replace(self, old: Deployed, stored: StoredFunction, inputs: FunctionInputs) -> None:
        """Serve a deployment with a queue and instances of its own in place of the present one."""
        self._begin(stored, inputs)
        new = self._functions[stored.spec.key]
        new.been_ready = old.been_ready
        new.runtime.metrics = old.runtime.metrics  # counted for the name, whatever serves it
        await self.instances.replace(old, new)

    def _drop(self, key: FunctionKey) -> None:
        """Forget a function."""
        self.members.discard(key)
        self._pending_restore.forget(key)
        self._logs.forget(key)
        deployed = self._functions.pop(key, None)
        if deployed is None:
            return
        self.directory.remove(key)
        self.instances.release(deployed)
        self._scaling.removed(deployed.name)
        self._other_replicas.forget(deployed.name)

    def _change(self, deployed: Deployed, spec: FunctionSpec, inputs: FunctionInputs) -> None:
        """Apply a changed deployment. Instances are replaced separately."""
        deployed.revision, deployed.secrets, deployed.engine = inputs.revision, inputs.secrets, str(inputs.engine or "")
        # Before `update`, which sizes batches by the profile.
        self._latency.use_profile(lanes(latency_key(spec.settings, deployed.name), inputs.signature).variants, inputs.profile)
        deployed.update(spec, self._checks.policy, inputs.signature, inputs.profile)
        deployed.start_failures = StartFailures()
        self._shadow_notice.report(spec)

    @asynccontextmanager
    async def _command(self, key: FunctionKey) -> AsyncIterator[None]:
        """Hold the function's lock for a command of a client, who does not wait for an attempt to serve the function."""
        self._pending_restore.interrupt(key)
        async with self._lock(key):
            yield

    def _lock(self, key: FunctionKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _is_changing(self, key: FunctionKey) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.locked()

    def _wanted(self, deployed: Deployed) -> int:
        if not self._other_replicas.leads:
            return len(deployed.live(self._platform.instances(deployed.name)))
        desired = self._scaling.desired(deployed.name)
        return deployed.spec.settings.scale.min if desired is None else desired

    def _with_defaults(self, spec: FunctionSpec) -> FunctionSpec:
        """The deployment with this platform's defaults."""
        quick = self._platform.capabilities.quick_model_starts
        return spec.idling_to_zero() if quick and spec.may_idle_to_zero else spec

    def _problem(self, deployed: Deployed) -> GnomonError | None:
        """The error that explains missing ready instances of this version; None if none are missing or no reason is known."""
        problem = deployed.start_failures.problem or self._start_delay(deployed)
        if problem is None:
            return None
        live = deployed.live(self.instances.of(deployed))
        ready = sum(instance.state is InstanceState.READY for instance in live)
        return problem if ready < self._wanted(deployed) else None

    def _start_delay(self, deployed: Deployed) -> GnomonError | None:
        """The error that says what delays starting instances, if the platform knows. They may still become ready."""
        platform = self._platform
        cause = platform.trouble(deployed.name) if isinstance(platform, Explains) else ""
        return GnomonError(503, "starting", f"The function does not start yet: {cause}") if cause else None

    def _begin(self, stored: StoredFunction, inputs: FunctionInputs) -> None:
        """Serve the function from now on. The platform has prepared it."""
        spec, name = stored.spec, str(stored.spec.key)
        runtime = FunctionRuntime(
            spec.key,
            spec.settings,
            self._checks.policy(spec.settings),
            self._latency.learned,
            signature=inputs.signature,
            profile=inputs.profile,
            epoch=self._epoch(),
            owner=self.instances,
            lender=self._platform if isinstance(self._platform, LendsCores) else None,
        )
        deployed = Deployed(
            spec, stored.version, inputs.revision, inputs.secrets, stored.created_at, runtime, inputs.profile,
            other_replicas=self._other_replicas, engine=str(inputs.engine or ""),
        )  # fmt: skip
        runtime.forget_latency()
        self._latency.use_profile(deployed.runtime.variants, deployed.profile)
        self._pending_restore.forget(spec.key)
        self._functions[spec.key] = deployed
        self.directory.add(runtime)
        self.instances.adopt(deployed)
        self._shadow_notice.report(spec)
        self._scaling.redeployed(name)


class ProfileRefresh:
    """Rereads the profiles of served models, so that a new measurement takes effect without a deployment.

    A model may be deployed before it is profiled, or profiled again on other machines. Latencies learned without the new profile
    are discarded; a buffer plan stays until the policy makes another. An equal profile changes nothing.

    Profiles are read side by side, and without the lock of their function, because a model store may hang. Each read blocks a
    worker thread until the store answers or its own timeout passes, so only some run at once. `is_changing` says whether a
    command changes the function.
    """

    def __init__(
        self,
        checks: Checks,
        latency: LatencyModels,
        functions: Mapping[FunctionKey, Deployed],
        is_changing: Callable[[FunctionKey], bool],
    ) -> None:
        self._checks, self._latency, self._functions, self._is_changing = checks, latency, functions, is_changing
        self._turns = asyncio.Semaphore(MOST_REREADS)
        self._reads: dict[FunctionKey, asyncio.Task[None]] = {}
        self._background = Background()

    def start(self) -> None:
        """Reread the profiles every `REREAD_S` seconds, until `stop`."""
        self._background.begin(self._run())

    async def stop(self) -> None:
        """Stop rereading."""
        await self._background.end()

    async def refresh(self, deployed: Deployed) -> None:
        """Use the profile that the platform has now. If reading it fails or takes long, the present profile stays in use."""
        await asyncio.wait({self._begin(deployed)}, timeout=REREAD_LIMIT_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REREAD_S)
            for deployed in list(self._functions.values()):
                if deployed.spec.settings.model is not None:
                    self._begin(deployed)

    def _begin(self, deployed: Deployed) -> asyncio.Task[None]:
        """Begin to read the function's profile, unless it is being read."""
        key = deployed.spec.key
        if (reading := self._reads.get(key)) is None:
            reading = self._reads[key] = self._background.begin(self._reread(deployed))
            reading.add_done_callback(lambda _: self._reads.pop(key))
        return reading

    async def _reread(self, deployed: Deployed) -> None:
        async with self._turns:
            spec = deployed.spec
            late = asyncio.get_running_loop().call_later(REREAD_LIMIT_S, _report_late, deployed.name)
            try:
                profile = await self._checks.profile(spec)
            except Exception:  # noqa: BLE001 - the next read may succeed
                _LOG.exception("%s: its profile cannot be read; the present one stays in use", deployed.name)
                return
            finally:
                late.cancel()
        # An update that came meanwhile has read the profile itself, and one in progress is about to use what it has read.
        served = self._functions.get(spec.key) is deployed and deployed.spec is spec and not self._is_changing(spec.key)
        if served and profile != deployed.profile:
            deployed.profile = profile
            self._latency.use_profile(deployed.runtime.variants, profile)
            deployed.runtime.set_profile(profile)


def _report_late(function: str) -> None:
    _LOG.warning(
        "%s: its profile has not been read after %d s, the model store does not answer; the present one stays in use",
        function,
        REREAD_LIMIT_S,
    )
