"""The functions of this gateway: what the API's routes call, and where the request path looks a name up.

A command is checked in full before anything changes, is on disk when it returns, and what it causes goes on behind it.
Commands for one function wait for each other; different functions do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from gnomon_core.errors import conflict
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, FunctionSpec
from gnomon_core.profiles import ModelProfile
from gnomon_core.seam_values import StoredFunction
from gnomon_core.seams import FunctionStore, Platform
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.profiled import ProfiledLatency
from gnomon_gateway.lifecycle.checks import Checks
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.corrections import Corrections
from gnomon_gateway.lifecycle.deployed import Deployed
from gnomon_gateway.lifecycle.elsewhere import Elsewhere
from gnomon_gateway.lifecycle.instances import Instances
from gnomon_gateway.lifecycle.lasting import outlive_us, refuse_hindered
from gnomon_gateway.logs import LogBook
from gnomon_gateway.openfaas.control import unknown_function
from gnomon_gateway.scheduling.registry import scheduling_policies
from gnomon_gateway.service import DecisionRecord, FunctionDetail, FunctionStatus, KnownPolicies
from gnomon_gateway.serving.function_runtime import FunctionRuntime


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the functions live among.

    `latency` learns from what is served, `profiled` foretells it of models with a profile; who composes them lets the one begin
    at the other. `corrections` remember what was learned before a restart. `fetch_model` brings a model into the repository if it
    can be had; `now` gives seconds since 1970; `plugins` are the scheduling policies of third parties that the operator named.
    `elsewhere` is what other replicas have of the functions, and whether one of them leads. `epoch` is that of our batches, while
    nobody shares the functions with us.
    """

    store: FunctionStore
    platform: Platform
    scaling: ScalingControl
    latency: LiveLatency
    logs: LogBook
    fetch_model: Callable[[str], Awaitable[None]]
    now: Callable[[], float]
    profiled: ProfiledLatency = field(default_factory=ProfiledLatency)
    corrections: Corrections | None = None
    plugins: Collection[str] = ()
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    epoch: Callable[[], int] = lambda: 1


class Manager:
    """A `FunctionService` and the request path's `FunctionDirectory`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._checks = Checks(around)
        self._functions: dict[FunctionKey, Deployed] = {}
        self._names: dict[str, FunctionRuntime] = {}
        self._locks: dict[FunctionKey, asyncio.Lock] = {}
        self._last_version = 0
        self.instances = Instances(around.platform, around.logs.append, around.scaling, self._checks.policy, around.elsewhere)

    async def start(self) -> None:
        """Serve again what the store holds. A function that cannot be served any more stays stored, and its log says why."""
        stored = await asyncio.to_thread(self._around.store.functions)
        self._last_version = max((function.version for function in stored), default=0)
        for function in stored:
            await self._serve(function)

    async def lead(self) -> None:
        """Decide from now on, where another process did: go on from what the store holds and the instances that are there."""
        stored = await asyncio.to_thread(self._around.store.functions)
        self._last_version = max((function.version for function in stored), default=0)
        for key in {function.spec.key for function in stored} | set(self._functions):
            await self.follow(key)
        for deployed in list(self._functions.values()):
            await self.instances.take_over(deployed)
            self._around.scaling.redeployed(deployed.name)

    async def stop(self) -> None:
        """Answer everything that was let in, then stop every instance, or leave those that outlive us."""
        for deployed in list(self._functions.values()):
            self.instances.release(deployed, leave=outlive_us(self._around.platform))
        self._functions.clear()
        self._names.clear()
        await self.instances.settle()

    # FunctionDirectory

    def lookup(self, name: str) -> FunctionRuntime | None:
        return self._names.get(name)

    def runtimes(self) -> Sequence[FunctionRuntime]:
        """Every function's runtime, for the metrics."""
        return [deployed.runtime for deployed in self._functions.values()]

    # FunctionService

    async def deploy(self, spec: FunctionSpec) -> None:
        async with self._lock(spec.key):
            if spec.key in self._functions:
                raise conflict("function_exists", f"{spec.key} is deployed already.", "Send a PUT to change it.")
            self._last_version += 1
            version, created_at = self._last_version, self._around.now()
            await self._checks.spec(spec)
            self._around.scaling.check_profile(spec.settings, await self._checks.profile(spec))
            await asyncio.to_thread(self._around.store.put_function, StoredFunction(spec, version, created_at))
            await self._begin(spec, version, created_at)

    async def update(self, spec: FunctionSpec) -> None:
        async with self._lock(spec.key):
            deployed = self._functions.get(spec.key)
            if deployed is None:
                raise unknown_function(spec.key)
            secrets, profile = await self._checks.spec(spec), await self._checks.profile(spec)
            self._around.scaling.check_profile(spec.settings, profile)
            revision = self._around.platform.revision(spec)
            same = (spec.same_instances(deployed.spec), revision, secrets) == (True, deployed.revision, deployed.secrets)
            if not same:
                refuse_hindered(self._around.platform, deployed.name)
                self._last_version += 1
            version = deployed.version if same else self._last_version
            await asyncio.to_thread(self._around.store.put_function, StoredFunction(spec, version, deployed.created_at))
            self._change(deployed, spec, secrets, profile)
            if not same:
                await self._replace_instances(deployed, version)
            self._around.scaling.redeployed(deployed.name)

    async def remove(self, key: FunctionKey) -> None:
        async with self._lock(key):
            deployed = self._functions.get(key)
            if deployed is None:
                raise unknown_function(key)
            await asyncio.to_thread(self._around.store.delete_function, key)
            self._drop(key)

    async def follow(self, key: FunctionKey) -> None:
        """Serve what the store holds: somebody else has added this function there, changed or removed it.

        What we have done ourselves is served already, and nothing happens. Only who leads changes a function that is served.
        """
        async with self._lock(key):
            stored = {one.spec.key: one for one in await asyncio.to_thread(self._around.store.functions)}.get(key)
            deployed = self._functions.get(key)
            if stored is None and deployed is not None:
                self._drop(key)
            elif stored is not None:
                self._last_version = max(self._last_version, stored.version)
                if deployed is None:
                    await self._serve(stored)
                elif (stored.version, stored.spec.raw) != (deployed.version, deployed.spec.raw):
                    await self._follow_update(deployed, stored)

    async def _follow_update(self, deployed: Deployed, stored: StoredFunction) -> None:
        """Another process has changed the function, and sees to its instances."""
        if self._around.elsewhere.leads():
            return
        secrets, profile = await self._checks.secrets(stored.spec), await self._checks.profile(stored.spec)
        self._change(deployed, stored.spec, secrets, profile)
        deployed.version, deployed.created_at = stored.version, stored.created_at
        await self.instances.take_over(deployed)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        deployed = self._functions.get(key)
        if deployed is None:
            raise unknown_function(key)
        deployed.requested = replicas
        if not replicas:
            deployed.keep_old = 0
            self.instances.retire_old(deployed)
        self._around.scaling.request(deployed.name, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        deployed = self._functions.get(key)
        if deployed is None:
            return None
        return FunctionStatus(
            spec=deployed.spec,
            created_at=deployed.created_at,
            replicas=self._wanted(deployed),
            available_replicas=deployed.runtime.ready,
            invocation_count=deployed.runtime.metrics.invocations + self._around.elsewhere.of(deployed.name).invocations,
            usage=self._around.platform.usage(deployed.name) if usage else None,
        )

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        deployed, status = self._functions.get(key), self.status(key)
        if deployed is None or status is None:
            return None
        runtime = deployed.runtime
        return FunctionDetail(
            status=status,
            scheduler=runtime.policy.name,
            instances=self.instances.seen(deployed.name),
            largest=runtime.largest_batches(),
            pairs=runtime.metrics.pairs,
            profile=runtime.profile(),
        )

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        keys = sorted(key for key in self._functions if key.namespace == namespace)
        return [status for key in keys if (status := self.status(key)) is not None]

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        return self._around.scaling.decisions(str(key), limit) if key in self._functions else None

    def policies(self) -> KnownPolicies:
        return KnownPolicies(self._around.scaling.policies(), scheduling_policies(self._around.plugins))

    # Behind the commands

    async def _serve(self, stored: StoredFunction) -> None:
        key = stored.spec.key
        try:
            await self._begin(stored.spec, stored.version, stored.created_at)
            await self.instances.take_over(self._functions[key])
        except Exception as error:  # noqa: BLE001 - one function that fails must not keep the others down
            self._around.logs.append(key, "", f"gnomon: {key} is not served: {error}")

    def _drop(self, key: FunctionKey) -> None:
        """Serve a function no longer."""
        deployed = self._functions.pop(key)
        self._names.pop(str(key), None)
        if key.namespace == DEFAULT_NAMESPACE:
            self._names.pop(key.name, None)
        self.instances.release(deployed)
        self._around.scaling.removed(deployed.name)
        self._around.elsewhere.forget(deployed.name)
        self._around.logs.forget(key)

    def _change(self, deployed: Deployed, spec: FunctionSpec, secrets: dict[str, bytes], profile: ModelProfile | None) -> None:
        """From now on the function is what this says; which instances it needs is another matter."""
        platform = self._around.platform
        deployed.spec, deployed.revision, deployed.secrets, deployed.profile = spec, platform.revision(spec), secrets, profile
        deployed.runtime.update(spec.settings, self._checks.policy(spec.settings), platform.signature(spec), profile)
        self._foretell(deployed)

    def _lock(self, key: FunctionKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _wanted(self, deployed: Deployed) -> int:
        if deployed.requested is not None:
            return deployed.requested
        if not self._around.elsewhere.leads():
            return len(deployed.live(self._around.platform.instances(deployed.name)))
        desired = self._around.scaling.desired(deployed.name)
        return deployed.spec.settings.scale.min if desired is None else desired

    def _foretell(self, deployed: Deployed) -> None:
        if deployed.profile is not None:
            for variant in deployed.runtime.variants:
                self._around.profiled.put(variant, deployed.profile)
                if self._around.corrections is not None:
                    self._around.corrections.begin(variant, deployed.profile)

    async def _begin(self, spec: FunctionSpec, version: int, created_at: float) -> None:
        around, name = self._around, str(spec.key)
        secrets, profile = await self._checks.spec(spec), await self._checks.profile(spec)
        runtime = FunctionRuntime(
            spec.key,
            spec.settings,
            self._checks.policy(spec.settings),
            around.latency,
            signature=around.platform.signature(spec),
            profile=profile,
            epoch=around.epoch(),
            on_demand=lambda: around.scaling.poke(name),
            on_frozen=self.instances.frozen,
        )
        revision = around.platform.revision(spec)
        deployed = Deployed(spec, version, revision, secrets, created_at, runtime, profile, elsewhere=around.elsewhere)
        self._foretell(deployed)
        await around.platform.prepare(spec)
        self._functions[spec.key] = deployed
        self._names[name] = runtime
        if spec.key.namespace == DEFAULT_NAMESPACE:
            self._names[spec.key.name] = runtime
        self.instances.adopt(deployed)
        around.scaling.redeployed(name)

    async def _replace_instances(self, deployed: Deployed, version: int) -> None:
        """Begin as many new instances as serve now; the old ones go as the new ones get ready."""
        platform = self._around.platform
        await platform.prepare(deployed.spec)
        deployed.version = version
        deployed.keep_old = len(deployed.old(platform.instances(deployed.name)))
        self.instances.give_up_starting(deployed)
        await self.instances.replace(deployed)
