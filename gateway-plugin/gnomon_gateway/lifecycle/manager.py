"""The functions of this gateway: what the API's routes call, and where the request path looks a name up.

A command is checked in full before anything changes, is on disk when it returns, and what it causes goes on behind it.
Commands for one function wait for each other; different functions do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from gnomon_core.errors import bad_request, conflict
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, FunctionSpec
from gnomon_core.profiles import ModelProfile
from gnomon_core.seam_values import StoredFunction
from gnomon_core.seams import FunctionStore, Platform, SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.profiled import ProfiledLatency
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.corrections import Corrections
from gnomon_gateway.lifecycle.deployed import Deployed
from gnomon_gateway.lifecycle.instances import Instances
from gnomon_gateway.lifecycle.lasting import outlive_us, refuse_hindered
from gnomon_gateway.logs import LogBook
from gnomon_gateway.openfaas.control import unknown_function
from gnomon_gateway.scheduling.registry import scheduling_policies, scheduling_policy
from gnomon_gateway.service import DecisionRecord, FunctionDetail, FunctionStatus, KnownPolicies
from gnomon_gateway.serving.function_runtime import FunctionRuntime


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the functions live among.

    `latency` learns from what is served, `profiled` foretells it of models with a profile; who composes them lets the one begin
    at the other. `corrections` remember what was learned before a restart. `fetch_model` brings a model into the repository if it
    can be had; `now` gives seconds since 1970; `plugins` are the scheduling policies of third parties that the operator named.
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


class Manager:
    """A `FunctionService` and the request path's `FunctionDirectory`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._functions: dict[FunctionKey, Deployed] = {}
        self._names: dict[str, FunctionRuntime] = {}
        self._locks: dict[FunctionKey, asyncio.Lock] = {}
        self._last_version = 0
        self.instances = Instances(around.platform, around.logs.append, around.scaling, self._policy)

    async def start(self) -> None:
        """Serve again what the store holds. A function that cannot be served any more stays stored, and its log says why."""
        stored = await asyncio.to_thread(self._around.store.functions)
        self._last_version = max((function.version for function in stored), default=0)
        for function in stored:
            await self._serve(function)

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
            await self._check(spec)
            self._around.scaling.check_profile(spec.settings, await self._profile(spec))
            await asyncio.to_thread(self._around.store.put_function, StoredFunction(spec, version, created_at))
            await self._begin(spec, version, created_at)

    async def update(self, spec: FunctionSpec) -> None:
        async with self._lock(spec.key):
            deployed = self._functions.get(spec.key)
            if deployed is None:
                raise unknown_function(spec.key)
            secrets, profile = await self._check(spec), await self._profile(spec)
            self._around.scaling.check_profile(spec.settings, profile)
            revision = self._around.platform.revision(spec)
            same = (spec.same_instances(deployed.spec), revision, secrets) == (True, deployed.revision, deployed.secrets)
            if not same:
                refuse_hindered(self._around.platform, deployed.name)
                self._last_version += 1
            version = deployed.version if same else self._last_version
            await asyncio.to_thread(self._around.store.put_function, StoredFunction(spec, version, deployed.created_at))
            deployed.spec, deployed.revision, deployed.secrets = spec, revision, secrets
            deployed.profile = profile
            deployed.runtime.update(spec.settings, self._policy(spec.settings), self._around.platform.signature(spec), profile)
            self._foretell(deployed)
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
        """Serve what the store holds: somebody else has added this function there, or removed it.

        What we have done ourselves is served already, and nothing happens.
        """
        async with self._lock(key):
            stored = {one.spec.key: one for one in await asyncio.to_thread(self._around.store.functions)}.get(key)
            if stored is None and key in self._functions:
                self._drop(key)
            elif stored is not None and key not in self._functions:
                self._last_version = max(self._last_version, stored.version)
                await self._serve(stored)

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
            invocation_count=deployed.runtime.metrics.invocations,
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
        self._around.logs.forget(key)

    def _lock(self, key: FunctionKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _wanted(self, deployed: Deployed) -> int:
        if deployed.requested is not None:
            return deployed.requested
        desired = self._around.scaling.desired(deployed.name)
        return deployed.spec.settings.scale.min if desired is None else desired

    async def _check(self, spec: FunctionSpec) -> dict[str, bytes]:
        """Refuse what can never serve; the values of the function's secrets otherwise."""
        self._policy(spec.settings)
        if spec.settings.model is not None:
            await self._around.fetch_model(spec.settings.model)
        self._around.platform.check(spec)
        return await self._secrets(spec)

    def _policy(self, settings: Settings) -> SchedulingPolicy:
        default = self._around.scaling.check(settings)
        return scheduling_policy(settings.scheduler or default, settings, self._around.plugins)

    async def _secrets(self, spec: FunctionSpec) -> dict[str, bytes]:
        values: dict[str, bytes] = {}
        for name in spec.secrets:
            value = await asyncio.to_thread(self._around.store.secret, FunctionKey(name, spec.key.namespace))
            if value is None:
                raise bad_request(
                    "secret_not_found",
                    f"secret {name[:100]!r} is not in namespace {spec.key.namespace!r}.",
                    f"Create it with `gnomon secret create {name[:100]}`.",
                )
            values[name] = value
        return values

    async def _profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model: a file of some hundred kilobytes."""
        return await asyncio.to_thread(self._around.platform.profile, spec)

    def _foretell(self, deployed: Deployed) -> None:
        if deployed.profile is not None:
            for variant in deployed.runtime.variants:
                self._around.profiled.put(variant, deployed.profile)
                if self._around.corrections is not None:
                    self._around.corrections.begin(variant, deployed.profile)

    async def _begin(self, spec: FunctionSpec, version: int, created_at: float) -> None:
        around, name = self._around, str(spec.key)
        secrets, profile = await self._check(spec), await self._profile(spec)
        runtime = FunctionRuntime(
            spec.key,
            spec.settings,
            self._policy(spec.settings),
            around.latency,
            signature=around.platform.signature(spec),
            profile=profile,
            on_demand=lambda: around.scaling.poke(name),
            on_frozen=self.instances.frozen,
        )
        deployed = Deployed(spec, version, around.platform.revision(spec), secrets, created_at, runtime, profile)
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
        await self.instances.replace(deployed)
