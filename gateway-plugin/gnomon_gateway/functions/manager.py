"""The functions of this gateway: what the API's routes call, and where the request path looks a name up.

A command is checked in full before anything changes, is on disk when it returns, and what it causes goes on behind it.
Commands for one function wait for each other; different functions do not.

A function that is stored and cannot be served is known to the API all the same, and tried again (`unserved`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError, conflict
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Explains, Restartable, StoredFunction
from gnomon_core.policy_registry import described
from gnomon_core.scaling import DecisionRecord
from gnomon_gateway.api.control import unknown_function
from gnomon_gateway.functions.context import Surroundings
from gnomon_gateway.functions.deployments import Deployed, Unserved
from gnomon_gateway.functions.function_runtime import FunctionRuntime, lanes, names_of, no_such_function
from gnomon_gateway.functions.instances import Instances
from gnomon_gateway.functions.measurements import Measurements
from gnomon_gateway.functions.start_failures import StartFailures
from gnomon_gateway.functions.validation import Checks, Means, notice, outlive_us, refuse_hindered, say_if_alone
from gnomon_gateway.service import FunctionDetail, FunctionStatus, KnownPolicies


class Manager:
    """A `FunctionService` and the request path's `FunctionDirectory`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._checks = Checks(around)
        self._functions: dict[FunctionKey, Deployed] = {}
        self._names: dict[str, FunctionRuntime] = {}
        self._locks: WeakValueDictionary[FunctionKey, asyncio.Lock] = WeakValueDictionary()
        """Those that commands hold or wait for."""
        self._last_version = 0
        self._measurements = Measurements(around, self._checks, self._functions, self._lock)
        self._unserved = Unserved(self.follow, around.logs.append)
        self._behind = Background()
        if isinstance(around.platform, Restartable):
            around.platform.watch_restarts(self._restarts)
        self.instances = Instances(around.platform, around.logs.append, around.scaling, self._checks.policy, around.elsewhere)

    async def start(self) -> None:
        """Serve again what the store holds. One that cannot be served any more stays stored, and its log says why."""
        stored = await asyncio.to_thread(self._around.store.functions)
        self._last_version = max((function.version for function in stored), default=0)
        for function in stored:
            await self._serve(function)
        self._measurements.start()

    async def lead(self) -> None:
        """Decide from now on, where another process did: go on from what the store holds and the instances that are there."""
        stored = await asyncio.to_thread(self._around.store.functions)
        for key in {function.spec.key for function in stored} | set(self._functions) | set(self._unserved):
            try:
                await self.follow(key, takes_over=True)
            except Exception as error:  # noqa: BLE001 - one that cannot be served must not keep us from the others
                self._around.logs.append(key, "", f"gnomon: what was changed of {key} cannot be served: {error}")
        for deployed in list(self._functions.values()):
            await self._measurements.look(deployed)
            say_if_alone(self._around, deployed.spec)
            await self.instances.take_over(deployed)
            self._around.scaling.redeployed(deployed.name)

    async def stop(self) -> None:
        """Answer everything that was let in, then stop every instance, or leave those that outlive us."""
        await self._behind.end()
        await self._unserved.stop()
        await self._measurements.stop()
        for deployed in list(self._functions.values()):
            self.instances.release(deployed, leave=outlive_us(self._around.platform))
        self._functions.clear()
        self._names.clear()
        await self.instances.settle()

    # FunctionDirectory

    def lookup(self, name: str) -> FunctionRuntime | None:
        return self._names.get(name)

    def refusal(self, name: str) -> GnomonError:
        return self._unserved.refusal(name) or no_such_function(name)

    def runtimes(self) -> Sequence[FunctionRuntime]:
        """Every function's runtime, for the metrics."""
        return [deployed.runtime for deployed in self._functions.values()]

    def all_been_ready(self) -> bool:
        """Whether each function that should have an instance has one, or has had one since it was deployed."""
        return all(
            deployed.been_ready or deployed.runtime.ready > 0 or not self._wanted(deployed)
            for deployed in self._functions.values()
        )

    # FunctionService

    async def deploy(self, spec: FunctionSpec) -> None:
        spec = self._here(spec)
        async with self._lock(spec.key):
            if spec.key in self._functions or spec.key in self._unserved:
                raise conflict("function_exists", f"{spec.key} is deployed already.", "Send a PUT to change it.")
            self._around.scaling.removed(str(spec.key))  # what was kept of one by this name is of one that is gone
            await self._put(spec, self._around.now())

    async def update(self, spec: FunctionSpec) -> None:
        spec = self._here(spec)
        async with self._lock(spec.key):
            deployed = self._functions.get(spec.key)
            if deployed is None:
                await self._mend(spec)
                return
            means = await self._checks.spec(spec)
            self._around.scaling.check_profile(spec.settings, means.profile)
            alike = (means.revision, means.secrets) == (deployed.revision, deployed.secrets)
            same = alike and spec.same_instances(deployed.spec)
            if not same:
                refuse_hindered(self._around.platform, deployed.name)
                await self._around.platform.prepare(spec)
                self._last_version += 1
            version = deployed.version if same else self._last_version
            await asyncio.to_thread(self._around.store.put_function, StoredFunction(spec, version, deployed.created_at))
            self._change(deployed, spec, means)
            if not same:
                deployed.version = version
                deployed.runtime.forget_latency()
                await self.instances.replacing.update(deployed)
            self._around.scaling.redeployed(deployed.name)

    async def remove(self, key: FunctionKey) -> None:
        async with self._lock(key):
            if key not in self._functions and key not in self._unserved:
                raise unknown_function(key)
            await asyncio.to_thread(self._around.store.delete_function, key)
            self._drop(key)

    def _restarts(self, key: FunctionKey, version: int) -> None:
        self._behind.begin(self.restart(key, version))

    async def restart(self, key: FunctionKey, version: int) -> None:
        """Replace all instances of this version by others of the same function: as in an update, no fewer serve meanwhile."""
        async with self._lock(key):
            deployed = self._functions.get(key)
            if deployed is None or deployed.version != version or not self._around.elsewhere.leads():
                return
            self._last_version += 1
            stored = StoredFunction(deployed.spec, self._last_version, deployed.created_at)
            await asyncio.to_thread(self._around.store.put_function, stored)
            deployed.version = stored.version
            await self.instances.replacing.update(deployed)
            self._around.scaling.redeployed(deployed.name)

    async def follow(self, key: FunctionKey, *, takes_over: bool = False) -> None:
        """Serve what the store holds: somebody else has added this function there, changed or removed it.

        What we have done ourselves is served already, and nothing happens. Only who leads changes a function that is served:
        we go by what was written before we did, whenever we hear of it.
        """
        async with self._lock(key):
            stored = {one.spec.key: one for one in await asyncio.to_thread(self._around.store.functions)}.get(key)
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
        """Another process has changed the function, and sees to its instances, or did until we lead."""
        if self._around.elsewhere.leads() and not takes_over and stored.version <= deployed.version:
            return  # a store may be behind what we have written
        self._change(deployed, self._here(stored.spec), await self._checks.means(stored.spec))
        if stored.version != deployed.version:
            deployed.runtime.forget_latency()
        deployed.version, deployed.created_at = stored.version, stored.created_at
        if not takes_over:
            await self.instances.take_over(deployed)
            self._around.scaling.redeployed(deployed.name)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        if (deployed := self._functions.get(key)) is None:
            raise self._unserved.refusal(str(key)) or unknown_function(key)
        if not replicas:
            deployed.keep_old = 0
            self.instances.replacing.retire(deployed)
        self._around.scaling.request(deployed.name, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        if (deployed := self._functions.get(key)) is None:
            return self._unserved.status(key)
        return FunctionStatus(
            spec=deployed.spec,
            created_at=deployed.created_at,
            replicas=self._wanted(deployed),
            available_replicas=deployed.runtime.ready,
            invocation_count=deployed.runtime.metrics.invocations + self._around.elsewhere.of(deployed.name).invocations,
            usage=self._around.platform.usage(deployed.name) if usage else None,
            problem=self._problem(deployed),
        )

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        deployed, status = self._functions.get(key), self.status(key)
        if deployed is None or status is None:
            return self._unserved.detail(key)
        runtime = deployed.runtime
        return FunctionDetail(
            status=status,
            scheduler=runtime.policy.name,
            instances=self.instances.seen(deployed.name),
            largest=runtime.largest_batches(),
            pairs=runtime.metrics.pairs,
            profile=runtime.profile(),
            notice=notice(self._around, deployed.spec),
            version=deployed.version,
            cannot_start=not runtime.starting and deployed.start_failures.final(len(self.instances.of(deployed))),
        )

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        keys = sorted(key for key in (*self._functions, *self._unserved) if key.namespace == namespace)
        return [status for key in keys if (status := self.status(key)) is not None]

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        return self._around.scaling.decisions(str(key), limit) if self.status(key) is not None else None

    def policies(self) -> KnownPolicies:
        return KnownPolicies(self._around.scaling.policies(), described(self._around.schedulers))

    # Behind the commands

    async def _serve(self, stored: StoredFunction) -> None:
        stored = replace(stored, spec=self._here(stored.spec))
        key = stored.spec.key
        try:
            means = await self._checks.spec(stored.spec, again=True)
            self._begin(stored, means)
            # It was prepared when it was deployed. Importing libraries again takes seconds, in which requests can already wait.
            self._behind.begin(self._prepare_again(stored))
            await self.instances.take_over(self._functions[key])
        except Exception as error:  # noqa: BLE001 - one function that fails must not keep the others down
            if key in self._functions:
                self._around.logs.append(key, "", f"gnomon: what was left of {key} could not be taken over: {error}")
            else:
                self._unserved.add(stored, str(error))

    async def _prepare_again(self, stored: StoredFunction) -> None:
        try:
            await self._around.platform.prepare(stored.spec)
        except Exception as error:  # noqa: BLE001 - its instances will say the same when they are made
            self._around.logs.append(stored.spec.key, "", f"gnomon: {stored.spec.key} could not be prepared: {error}")

    async def _put(self, spec: FunctionSpec, created_at: float) -> None:
        """Store a function that is not served, and serve it."""
        means = await self._checks.spec(spec)
        self._around.scaling.check_profile(spec.settings, means.profile)
        await self._around.platform.prepare(spec)
        self._last_version += 1
        stored = StoredFunction(spec, self._last_version, created_at)
        await asyncio.to_thread(self._around.store.put_function, stored)
        self._begin(stored, means)

    async def _mend(self, spec: FunctionSpec) -> None:
        """Change a function that cannot be served as it is."""
        if (stored := self._unserved.get(spec.key)) is None:
            raise unknown_function(spec.key)
        refuse_hindered(self._around.platform, str(spec.key))
        await self._put(spec, stored.created_at)
        await self.instances.take_over(self._functions[spec.key])

    def _drop(self, key: FunctionKey) -> None:
        """Know a function no longer."""
        self._unserved.forget(key)
        self._around.logs.forget(key)
        deployed = self._functions.pop(key, None)
        if deployed is None:
            return
        for name in names_of(key):
            self._names.pop(name, None)
        self.instances.release(deployed)
        self._around.scaling.removed(deployed.name)
        self._around.elsewhere.forget(deployed.name)

    def _change(self, deployed: Deployed, spec: FunctionSpec, means: Means) -> None:
        """From now on the function is what this says; which instances it needs is another matter."""
        deployed.revision, deployed.secrets = means.revision, means.secrets
        # Before batches are sized by it.
        self._around.foretell(lanes(spec.settings.model or deployed.name, means.signature).variants, means.profile)
        deployed.update(spec, self._checks.policy, means.signature, means.profile)
        deployed.start_failures = StartFailures()
        say_if_alone(self._around, spec)

    def _lock(self, key: FunctionKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _wanted(self, deployed: Deployed) -> int:
        if not self._around.elsewhere.leads():
            return len(deployed.live(self._around.platform.instances(deployed.name)))
        desired = self._around.scaling.desired(deployed.name)
        return deployed.spec.settings.scale.min if desired is None else desired

    def _here(self, spec: FunctionSpec) -> FunctionSpec:
        """The function with this platform's defaults."""
        quick = self._around.platform.capabilities.quick_model_starts
        return spec.idling_to_zero() if quick and spec.may_idle_to_zero else spec

    def _problem(self, deployed: Deployed) -> GnomonError | None:
        """Why it has fewer instances of its present version than are wanted; None where it has them, or nothing is known."""
        problem = deployed.start_failures.problem or self._trouble(deployed)
        if problem is None:
            return None
        live = deployed.live(self.instances.of(deployed))
        ready = sum(one.state is InstanceState.READY for one in live)
        return problem if ready < self._wanted(deployed) else None

    def _trouble(self, deployed: Deployed) -> GnomonError | None:
        """What keeps instances that are starting, where the platform sees it: they may get on, or fail in their time."""
        platform = self._around.platform
        said = platform.trouble(deployed.name) if isinstance(platform, Explains) else ""
        return GnomonError(503, "starting", f"The function does not start yet: {said}") if said else None

    def _begin(self, stored: StoredFunction, means: Means) -> None:
        """Serve it from now on: its platform has been prepared."""
        around, spec, name = self._around, stored.spec, str(stored.spec.key)
        runtime = FunctionRuntime(
            spec.key,
            spec.settings,
            self._checks.policy(spec.settings),
            around.latency,
            signature=means.signature,
            profile=means.profile,
            epoch=around.epoch(),
            owner=self.instances,
        )
        deployed = Deployed(
            spec, stored.version, means.revision, means.secrets, stored.created_at, runtime, means.profile,
            elsewhere=around.elsewhere,
        )  # fmt: skip
        runtime.forget_latency()
        self._around.foretell(deployed.runtime.variants, deployed.profile)
        self._unserved.forget(spec.key)
        self._functions[spec.key] = deployed
        self._names |= dict.fromkeys(names_of(spec.key), runtime)
        self.instances.adopt(deployed)
        say_if_alone(around, spec)
        around.scaling.redeployed(name)
