"""The instances of functions: created, drained and stopped as the autoscaler decides.

    autoscaler ─▶ ScaledFleet.apply(actions) ─▶ Platform.create, resize, destroy …
    Platform ─▶ PlatformListener.instance_ready, instance_gone … ─▶ FunctionRuntime, autoscaler

Commands start here and continue in the background. A draining instance gets no further batches, finishes those in flight, and is
then destroyed.

A rolling update (`RollingUpdate`) replaces the Bodies of earlier versions as those of the present version become ready:

    update ─▶ create one Body per serving Body ─▶ ready ─▶ an old Body is drained ─▶ … until none is left
                └ no capacity for even one ─▶ an old Body is drained ─▶ gone ─▶ a new Body is created in its place

Meanwhile no fewer Bodies serve than before, or than are wanted now, except for the one that frees capacity.

An update to a model with other tensors, or between a model and a handler, replaces the queue as well (`Instances.replace`):
neither the old instances nor the new ones can execute the other's requests.

    update ─┬─ requests that were admitted before ─▶ old instances ─▶ answered ─▶ old instances end
            └─ requests whose bodies come afterwards ─▶ a queue of their own ─▶ wait for the new instances

Shadows (`Shadows`) are created, changed and ended as decided, and the dispatcher learns which Bodies work with them:

    CreateShadow ─▶ platform … pair_changed(Body) ─▶ dispatcher: larger batches from the next one on
    PromoteShadow ─▶ platform … pair_changed(Body alone) ─▶ dispatcher … instance_ready(a Body)
    DestroyShadow ─▶ platform … pair_changed(Body without it) ─▶ dispatcher … instance_gone(Shadow)
    an earlier leader's Shadow ─▶ shadow_found … as one that was created here

A Shadow has no batches of its own, so there is nothing to drain: its Body stops using it. A Shadow that ends unexpectedly only
slows its Body down, and is no failed start. A Body that ends takes its Shadows along.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from gnomon_core.actuation import Actuator, PartlyRefused, carry_out_async
from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import BatchChannel, InstanceRequest, LendsCores, PersistentPlatform, Platform
from gnomon_core.pairs import Pair, together
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import (
    Action,
    ChangeShadow,
    CreateBody,
    CreateShadow,
    DecisionRecord,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import function_removed, function_updated
from gnomon_gateway.functions.deployments import Deployed, LostInstance, OtherReplicas, SchedulerOf
from gnomon_gateway.functions.function_runtime import FunctionRuntime, InstanceOwner

_LOG = logging.getLogger("gnomon.functions")


class ScalingControl(Protocol):
    """The port to the autoscaler. The composition root connects it; every method but the checks is cheap and returns at once."""

    def check(self, settings: Settings) -> str:
        """The name of the scheduling policy that the function's scaling policy requires.

        Raises:
            GnomonError: 400 for an unknown policy, or one that the platform does not support.

        """
        ...

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Refuse a function whose scaling policy requires a profile of its model, if there is none.

        Checked when a function is deployed or updated; a function that is already deployed is served without a profile.

        Raises:
            GnomonError: 400, with the command that measures a profile.

        """
        ...

    def poke(self, function: str) -> None:
        """Decide about the function now."""
        ...

    def request(self, function: str, instances: int) -> None:
        """Request this number of instances for an operator."""
        ...

    def redeployed(self, function: str) -> None:
        """Reset the back-off after failed starts of a function that was deployed again."""
        ...

    def served(self, function: str) -> None:
        """Reset the back-off after failed starts: an instance that had answered requests has ended."""
        ...

    def start_backoff_s(self, function: str) -> float:
        """The remaining back-off in seconds before the function's next instance may start; 0 if it may start now."""
        ...

    def removed(self, function: str) -> None:
        """Forget the state of a removed function."""
        ...

    def desired(self, function: str) -> int | None:
        """The number of instances that the last decision wants; None before the first decision."""
        ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]: ...

    def makes_shadows(self, settings: Settings) -> bool:
        """Return whether the function's scaling policy creates Shadows on a platform that supports them."""
        ...

    def policies(self) -> Mapping[str, str]:
        """The known scaling policies, each with a one-sentence description."""
        ...


class Bodies(Protocol):
    """The creation and termination of a function's instances."""

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """The instances of this function that are not gone."""
        ...

    async def create(self, deployed: Deployed, cores: int) -> None:
        """Start an instance, unless the function has been removed.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        ...

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain an instance, then stop it."""
        ...


class RollingUpdate:
    """The rolling update of functions' Bodies. `scaling` knows the desired numbers; only the leading process retires Bodies."""

    def __init__(self, bodies: Bodies, scaling: ScalingControl, other_replicas: OtherReplicas) -> None:
        self._bodies = bodies
        self._scaling = scaling
        self._other_replicas = other_replicas

    async def update(self, deployed: Deployed) -> None:
        """Replace the instances of earlier versions. Those that are still starting are stopped, to free their capacity."""
        instances = self._bodies.of(deployed)
        deployed.keep_old = len(deployed.old(instances))
        # Instances of the replaced version that are still starting have served no request: nothing is lost by stopping them.
        self._retire(deployed, deployed.old(instances, InstanceState.STARTING))
        await self.begin(deployed)

    async def take_over(self, deployed: Deployed) -> None:
        """Continue the update of an earlier gateway process, from the instances that it has left."""
        old = [instance for instance in self._bodies.of(deployed) if instance.version < deployed.version]
        deployed.keep_old = sum(instance.kind is InstanceKind.BODY for instance in old)
        if self._other_replicas.leads:
            await self.begin(deployed)

    def retire(self, deployed: Deployed) -> None:
        """Drain as many instances of earlier versions as ready new instances replace."""
        if self._other_replicas.leads:
            self._retire(deployed, deployed.replaceable(self._bodies.of(deployed), self._scaling.desired(deployed.name)))

    async def replace_retired(self, deployed: Deployed) -> None:
        """Create a new instance in the place of an old one that has ended, if one is missing."""
        missing = (self._scaling.desired(deployed.name) or 0) - len(deployed.live(self._bodies.of(deployed)))
        if missing > 0:
            with contextlib.suppress(GnomonError):  # another function took the capacity: the autoscaler retries
                await self._bodies.create(deployed, deployed.spec.settings.cores)
        self._scaling.poke(deployed.name)

    async def begin(self, deployed: Deployed) -> None:
        """Create one instance per serving old one. Those without capacity are created later, as others become ready."""
        for created in range(deployed.keep_old):
            try:
                await self._bodies.create(deployed, deployed.spec.settings.cores)
            except GnomonError as refused:
                _LOG.info("%s: rolling update waits for capacity for a new instance: %s", deployed.name, refused)
                # No capacity even for the first: an old Body is given up, otherwise the update would wait for ever.
                if not created and not deployed.retired:
                    deployed.keep_old -= 1
                    self.retire(deployed)
                return

    def _retire(self, deployed: Deployed, old: Sequence[Instance]) -> None:
        for instance in old:
            deployed.retired.add(instance.id)
            self._bodies.stop(deployed, instance.id)


_NO_BODY = "no_such_body"
_NO_SHADOW = "no_such_shadow"


class Shadows:
    """The gateway's tracker of Shadows. `log` appends a line to the function's log."""

    def __init__(self, platform: Platform, log: Callable[[FunctionKey, str, str], None]) -> None:
        self._platform = platform
        self._log = log
        self._body_of: dict[str, str] = {}
        """Each Shadow, from its creation to its end or promotion, with its Body."""
        self._partners: dict[str, dict[str, Pair]] = {}
        """Each Body with the Shadows that it works with, as it reported last."""

    def __contains__(self, shadow_id: str) -> bool:
        return shadow_id in self._body_of

    def add(self, shadow_id: str, body_id: str) -> None:
        """Track a Shadow of this Body."""
        self._body_of[shadow_id] = body_id

    def bodies(self) -> dict[str, str]:
        """The Body of each tracked Shadow, by id."""
        return dict(self._body_of)

    async def create(self, deployed: Deployed, body_id: str, pair: Pair) -> Instance | None:
        """Create a Shadow; None if its Body has ended since the decision.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if body_id in deployed.draining:
            return None
        try:
            shadow = await self._platform.create_shadow(body_id, pair)
        except GnomonError as refused:
            if refused.code != _NO_BODY:
                raise
            _LOG.info("%s: no Shadow is created, the Body %s has ended: %s", deployed.name, body_id, refused)
            return None
        # The Shadow ended while it was being created: its end was reported before it was tracked, and will not be reported again.
        if all(shadow.id != instance.id for instance in self._platform.instances(deployed.name)):
            return None
        self.add(shadow.id, body_id)
        return shadow

    def take_over(self, deployed: Deployed, instances: Sequence[Instance]) -> None:
        """Replace the pairs that an earlier leader reported by those that the platform knows."""
        for body in (instance for instance in instances if instance.kind is InstanceKind.BODY):
            self.pair_changed(deployed, body)

    def found(self, deployed: Deployed, shadow: Instance) -> bool:
        """Track a Shadow that an earlier leader has left; False if its Body is draining."""
        body_id = shadow.partner or ""
        if body_id in deployed.draining:
            return False
        self.add(shadow.id, body_id)
        return True

    async def promote(self, deployed: Deployed, shadow_id: str) -> bool:
        """Let a Shadow become a Body of its own; False if it has ended since the decision.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if shadow_id not in self._body_of or shadow_id in deployed.draining:
            return False
        try:
            await self._platform.promote_shadow(shadow_id)
        except GnomonError as refused:
            if refused.code != _NO_SHADOW:
                raise
            _LOG.info("%s: Shadow %s is not promoted, it has ended: %s", deployed.name, shadow_id, refused)
            return False
        self._body_of.pop(shadow_id, None)
        return True

    async def end(self, deployed: Deployed, shadow_id: str) -> None:
        """End a Shadow: its Body continues without it."""
        if shadow_id in self._body_of:
            deployed.draining.add(shadow_id)
            await self._platform.destroy(shadow_id)

    async def end_shadows_of(self, deployed: Deployed, body_id: str) -> None:
        """End the Shadows of a Body that is about to be stopped, or has ended."""
        self._partners.pop(body_id, None)
        for shadow_id in [shadow for shadow, body in self._body_of.items() if body == body_id]:
            await self.end(deployed, shadow_id)

    def pair_changed(self, deployed: Deployed, body: Instance) -> None:
        """Take over the Body's Shadows: its next batch uses them."""
        self._partners[body.id] = body.shadows
        deployed.runtime.pair_changed(body.id, together(tuple(body.shadows.values())))

    def table(self) -> dict[str, list[Pair]]:
        """Each Body that has Shadows, with their pairs, for the replicas that make its batches."""
        return {body: list(shadows.values()) for body, shadows in self._partners.items() if shadows}

    def gone(self, deployed: Deployed, shadow_id: str, reason: str) -> None:
        """Stop tracking a Shadow that has ended, as decided or unexpectedly."""
        body_id = self._body_of.pop(shadow_id)
        left = self._partners.get(body_id, {})
        if left.pop(shadow_id, None) is not None:
            # Without this, that batch would be sized for the pair and wait for the Shadow.
            # The Body reports the end of its Shadow only with its next batch.
            deployed.runtime.pair_changed(body_id, together(tuple(left.values())))
        if shadow_id in deployed.draining:
            deployed.draining.discard(shadow_id)
            return
        self._log(deployed.spec.key, shadow_id, f"gnomon: Shadow {shadow_id} of {body_id} has ended: {reason}")
        _LOG.warning("%s: Shadow %s of %s has ended: %s", deployed.name, shadow_id, body_id, reason)


class Instances(InstanceOwner):
    """The instances of every function.

    `log` appends a line to a function's log; `scaling` is the autoscaler; `policy` makes the scheduling policy for changed
    settings. While another process leads (`other_replicas`), this one only tracks the instances that the leader creates and
    destroys.
    """

    def __init__(
        self,
        platform: Platform,
        log: Callable[[FunctionKey, str, str], None],
        scaling: ScalingControl,
        policy: SchedulerOf,
        other_replicas: OtherReplicas | None = None,
    ) -> None:
        self._platform = platform
        self._other_replicas = other_replicas or OtherReplicas()
        self.log_line = self._log = log
        """Writes a line of an instance, straight to the log: there may be thousands a second."""
        self._policy = policy
        self._scaling = scaling
        self._deployed: dict[str, Deployed] = {}
        self._owners: dict[str, Deployed] = {}
        self.shadows = Shadows(platform, log)
        self.rolling_update = RollingUpdate(self, scaling, self._other_replicas)
        self._background = Background()
        self._begin = self._background.begin

    def adopt(self, deployed: Deployed) -> None:
        """Manage this function's instances from now on."""
        self._deployed[deployed.name] = deployed

    def release(self, deployed: Deployed, *, leave: bool = False) -> None:
        """Answer a removed function's waiting requests, then stop its instances, in the background.

        With `leave` only this process stops: the instances keep running for the process that adopts them.
        """
        self._deployed.pop(deployed.name, None)
        self._begin(self._wind_down(deployed, function_removed(), leave=leave))

    async def replace(self, old: Deployed, new: Deployed) -> None:
        """Serve a function by `new` from now on. The instances of `old` answer its requests in the background, then end."""
        self._deployed[new.name] = new
        old.runtime.successor = new.runtime
        new.keep_old = sum(
            body.kind is InstanceKind.BODY and body.state is InstanceState.READY and body.id not in old.draining
            for body in self.of(old)
        )
        self._begin(self._wind_down(old, function_updated(), awaits_start=True))
        await self.rolling_update.begin(new)
        self._scaling.poke(new.name)

    async def take_over(self, deployed: Deployed) -> None:
        """Adopt the instances that an earlier gateway process has left; those of an earlier version are replaced."""
        for instance in adopt_instances(self._platform, deployed):
            self._owners.setdefault(instance.id, deployed)
        self._report_starting(deployed)
        if self._other_replicas.leads:
            self.shadows.take_over(deployed, self.of(deployed))
        await self.rolling_update.take_over(deployed)

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """The function's instances, without those of a removed or replaced function of the same name."""
        instances = self._platform.instances(deployed.name)
        # An instance that is being created is listed before it is registered here.
        present = self._deployed.get(deployed.name, deployed)
        return tuple(instance for instance in instances if self._owners.get(instance.id, present) is deployed)

    def runtime_of(self, instance_id: str) -> FunctionRuntime | None:
        """The runtime of an instance's function."""
        deployed = self._owners.get(instance_id)
        return None if deployed is None else deployed.runtime

    async def settle(self) -> None:
        """Return once all background work has ended."""
        await self._background.settled()

    def seen(self, function: str) -> tuple[Instance, ...]:
        """All instances of the function that are not gone, those of earlier versions too."""
        deployed = self._deployed.get(function)
        return deployed.seen(self._platform.instances(function)) if deployed is not None else ()

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make the function's batches within these limits from now on; None restores the deployed limits. Idempotent."""
        deployed = self._deployed.get(function)
        if deployed is not None:
            deployed.plan_buffer(plan, self._policy)

    def plans(self) -> dict[str, SetBufferPlan]:
        """The buffer plans in force, by function."""
        return {name: deployed.plan for name, deployed in self._deployed.items() if deployed.plan is not None}

    # ScaledFleet: what the autoscaler sees and does

    def functions(self) -> Sequence[str]:
        return tuple(self._deployed)

    def load(self, function: str) -> FunctionLoad | None:
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.load(self._platform.instances(function), self._platform.nodes())

    def stamp(self, function: str) -> object:
        """A value that changes whenever `load` changes."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.stamp(self._platform.instances(function))

    def stamp_without_requests(self, function: str) -> object:
        """A value that changes whenever `load` changes for another reason than requests."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.stamp_without_requests(self._platform.instances(function))

    def counters(self, function: str) -> LoadCounters | None:
        """The function's load counters, here and at other replicas."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.counters()

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        deployed = self._deployed.get(function)
        if deployed is None:
            return
        refuse_foreign_autoscaler(self._platform, function)
        try:
            # In both cases: the actions that succeeded may have changed the numbers by which old instances are retired.
            await carry_out_async(_FunctionActuator(self, self._platform, deployed, self._policy), actions)
        except PartlyRefused:
            self.rolling_update.retire(deployed)
            raise
        self.rolling_update.retire(deployed)

    async def create(
        self,
        deployed: Deployed,
        cores: int,
        node: str | None = None,
        memory_mb: int | None = None,
        idle_cores: int | None = None,
    ) -> None:
        """Create an instance, unless the function was removed.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        # The function may have been removed while its decision was under way.
        if not self._is_deployed(deployed):
            return
        request = InstanceRequest(deployed.spec, deployed.version, cores, node, deployed.secrets, memory_mb, idle_cores)
        try:
            begun = await self._platform.create(request)
        except GnomonError as refused:
            if deployed.start_failures.refused(time.monotonic(), refused):
                self._log(deployed.spec.key, "", f"gnomon: no instance can be created: {refused}")
            # Requests that wait for an instance would otherwise wait until their deadlines.
            deployed.runtime.refuse_waiting()
            raise
        deployed.start_failures.clear_shortage()
        self._register(deployed, begun)
        self._report_starting(deployed)

    async def create_shadow(self, deployed: Deployed, body_id: str, pair: Pair) -> None:
        """Create a Shadow of a Body.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        shadow = await self.shadows.create(deployed, body_id, pair)
        if shadow is not None:
            self._register(deployed, shadow)
        self._report_starting(deployed)

    async def promote_shadow(self, deployed: Deployed, shadow_id: str) -> None:
        """Let a Shadow become a Body.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        await self.shadows.promote(deployed, shadow_id)
        self._report_starting(deployed)

    def end_shadow(self, deployed: Deployed, shadow_id: str) -> None:
        """End a Shadow, in the background."""
        self._begin(self.shadows.end(deployed, shadow_id))

    async def resize(self, deployed: Deployed, instance_id: str, cores: int, idle_cores: int | None = None) -> None:
        """Change an instance's cores. The dispatcher uses the cores that the platform reports, at once or later.

        With `idle_cores` it borrows them for each batch, if the platform lends cores; others give it cores of its own.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        platform = self._platform
        if isinstance(platform, LendsCores):
            await platform.resize(instance_id, cores, idle_cores)
        else:
            await platform.resize(instance_id, cores)
        # Read back, because the platform may have granted another number of cores.
        for instance in self._platform.instances(deployed.name):
            if instance.id == instance_id:
                deployed.runtime.instance_resized(instance_id, instance.cores, instance.idle_cores)

    def _is_deployed(self, deployed: Deployed) -> bool:
        return self._deployed.get(deployed.name) is deployed

    def _register(self, deployed: Deployed, begun: Instance) -> None:
        """Register a new instance; destroy it if its function was removed meanwhile."""
        self._owners[begun.id] = deployed
        if not self._is_deployed(deployed):
            deployed.draining.add(begun.id)
            self._begin(self._platform.destroy(begun.id))

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain an instance, then stop it, in the background."""
        if instance_id not in deployed.draining:
            deployed.draining.add(instance_id)
            self._begin(self._drain(deployed, instance_id))

    # InstanceOwner: what the functions' runtimes ask for

    def instance_needed(self, function: str) -> None:
        self._scaling.poke(function)

    def start_refusal(self, function: str) -> GnomonError | None:
        deployed = self._deployed.get(function)
        if deployed is None or deployed.start_failures.problem is None:
            return None
        return deployed.start_failures.refusal(
            time.monotonic(),
            starting=deployed.runtime.starting,
            instances=len(self._platform.instances(function)),
            backoff_s=self._scaling.start_backoff_s(function),
        )

    def instance_frozen(self, instance_id: str, reason: str) -> None:
        """Stop an instance that no longer answers. Its batches fail with it, and another instance replaces it."""
        deployed = self._owners.get(instance_id)
        if deployed is not None:
            deployed.draining.add(instance_id)
            self._log_stop(deployed, instance_id, reason)
        if not self._other_replicas.leads:
            self._other_replicas.lose(instance_id, LostInstance(reason))
        self._begin(self._platform.destroy(instance_id))

    def lost_at_replica(self, instance_id: str, lost: LostInstance) -> None:
        """Replace an instance to which another replica has lost its connection."""
        deployed = self._owners.get(instance_id)
        if deployed is None or instance_id in deployed.draining:
            return
        if not self._other_replicas.leads:
            # This process is about to lead (`lead`), or another one leads by now and asks for this report.
            self._other_replicas.lose(instance_id, lost)
            return
        if lost.served:
            self._scaling.served(deployed.name)
        self._log_stop(deployed, instance_id, lost.reason)
        # The instance may be well, and its connections to this process too: they answer what is in flight.
        self.stop(deployed, instance_id)

    def lead(self) -> None:
        """Replace the instances that were lost, here or at other replicas, while no process led."""
        lost = dict(self._other_replicas.lost)
        self._other_replicas.lost.clear()
        for instance_id, instance in lost.items():
            deployed = self._owners.get(instance_id)
            if deployed is not None and instance_id in deployed.draining:
                self._begin(self._platform.destroy(instance_id))  # it froze here
            else:
                self.lost_at_replica(instance_id, instance)

    # PlatformListener

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        deployed = self._owners.get(instance.id)
        # Created by the leader, or by the previous one where this process has begun to lead and not taken the function over yet.
        if deployed is None and instance.function in self._deployed:
            deployed = self._owners[instance.id] = self._deployed[instance.function]
        if deployed is None or instance.id in deployed.draining:
            self._begin(self._platform.destroy(instance.id))
            return
        deployed.been_ready = True
        # An old version that becomes ready says nothing about whether the present one can start.
        if instance.version == deployed.version:
            deployed.start_failures.ready()
        deployed.runtime.instance_ready(instance, channel)
        if instance.pair is not None:
            self.shadows.pair_changed(deployed, instance)  # the pair was known before the Body was ready
        self._report_starting(deployed)
        if deployed.old(self.of(deployed)):
            deployed.runtime.forget_latency()  # instances of earlier versions were measured until now
        self.rolling_update.retire(deployed)
        self._scaling.poke(deployed.name)

    def instance_gone(self, instance_id: str, reason: str) -> None:
        deployed = self._owners.pop(instance_id, None)
        if deployed is None:
            return
        # The present deployment may be another one than the instance's, which waits for this capacity after an update.
        if (present := self._deployed.get(deployed.name)) is not None:
            present.start_failures.clear_shortage()
        if instance_id in self.shadows:
            self.shadows.gone(deployed, instance_id, reason)
            self._scaling.poke(deployed.name)
            return
        # A start has failed if the instance ended by itself before it was ever ready: this delays the next start (back-off).
        # An instance that was stopped while it started has not failed.
        failed = not deployed.runtime.has_been_ready(instance_id) and instance_id not in deployed.draining
        served = deployed.runtime.forget(instance_id)
        if not self._other_replicas.leads:
            # The leader counts failed starts and replaces instances, so it must learn of an instance that this replica has lost;
            # but not of those that it leaves when it stops: they run on.
            if self._is_deployed(deployed):
                self._other_replicas.lose(instance_id, LostInstance(reason, served))
        elif instance_id not in deployed.draining:
            if served:
                self._scaling.served(deployed.name)
            self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} has ended: {reason}")
            _LOG.warning("%s: instance %s has ended: %s", deployed.name, instance_id, reason)
            if failed:
                deployed.start_failures.failed(time.monotonic(), reason)
        deployed.draining.discard(instance_id)
        deployed.runtime.instance_gone(instance_id, reason)
        deployed.runtime.fail_unserved(starting=self._starting(deployed))
        self._begin(self.shadows.end_shadows_of(deployed, instance_id))
        self._report_starting(deployed)
        deployed.runtime.refuse_waiting()
        if instance_id in deployed.retired:
            deployed.retired.discard(instance_id)
            self._begin(self.rolling_update.replace_retired(deployed))
        else:
            self._scaling.poke(deployed.name)

    def pair_changed(self, body: Instance) -> None:
        deployed = self._owners.get(body.id)
        if deployed is not None:
            self.shadows.pair_changed(deployed, body)
            self._scaling.poke(deployed.name)

    def shadow_found(self, shadow: Instance) -> None:
        deployed = self._owners.get(shadow.partner or "")
        if deployed is not None and self.shadows.found(deployed, shadow):
            self._owners[shadow.id] = deployed
            self._scaling.poke(deployed.name)
        else:
            self._begin(self._platform.destroy(shadow.id))

    # Background work

    async def _drain(self, deployed: Deployed, instance_id: str) -> None:
        await deployed.runtime.drain(instance_id)
        # The Body's last batches may still use its Shadows, so they end after the drain.
        await self.shadows.end_shadows_of(deployed, instance_id)
        await self._platform.destroy(instance_id)

    async def _wind_down(
        self, deployed: Deployed, error: GnomonError, *, awaits_start: bool = False, leave: bool = False
    ) -> None:
        # Listed first: a new function of the same name may create instances while the requests are answered.
        mine = [instance_id for instance_id, owner in self._owners.items() if owner is deployed]
        await deployed.answer_all(error, starting=self._starting(deployed) if awaits_start else 0)
        deployed.draining.update(mine)
        if not leave:
            await asyncio.gather(*(self._platform.destroy(instance_id) for instance_id in mine))
        deployed.runtime.close()

    def _log_stop(self, deployed: Deployed, instance_id: str, reason: str) -> None:
        self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} is stopped: {reason}")

    def _report_starting(self, deployed: Deployed) -> None:
        deployed.runtime.set_starting(self._starting(deployed))

    def _starting(self, deployed: Deployed) -> int:
        bodies = (instance for instance in self.of(deployed) if instance.kind is InstanceKind.BODY)
        return sum(body.state is InstanceState.STARTING for body in bodies)


class _FunctionActuator(Actuator[Awaitable[None]]):
    """Carries out the decisions on one function of the gateway."""

    def __init__(self, instances: Instances, platform: Platform, deployed: Deployed, policy: SchedulerOf) -> None:
        self._instances, self._platform, self._deployed, self._policy = instances, platform, deployed, policy

    async def create_body(self, action: CreateBody) -> None:
        await self._instances.create(self._deployed, action.cores, action.node, action.memory_mb, action.idle_cores)

    async def destroy_body(self, action: DestroyBody) -> None:
        self._instances.stop(self._deployed, action.id)

    async def create_shadow(self, action: CreateShadow) -> None:
        await self._instances.create_shadow(self._deployed, action.body, action.pair)

    async def change_shadow(self, action: ChangeShadow) -> None:
        await self._platform.change_shadow(action.id, action.pair)

    async def destroy_shadow(self, action: DestroyShadow) -> None:
        self._instances.end_shadow(self._deployed, action.id)

    async def promote_shadow(self, action: PromoteShadow) -> None:
        await self._instances.promote_shadow(self._deployed, action.id)

    async def resize(self, action: Resize) -> None:
        await self._instances.resize(self._deployed, action.id, action.cores, action.idle_cores)

    async def set_buffer_plan(self, action: SetBufferPlan) -> None:
        self._deployed.plan_buffer(action, self._policy)


def outlive_gateway(platform: Platform) -> bool:
    """Return whether instances keep running when the gateway stops."""
    return isinstance(platform, PersistentPlatform)


def adopt_instances(platform: Platform, deployed: Deployed) -> tuple[Instance, ...]:
    """Adopt the instances that an earlier gateway process has left; returns all instances of the function."""
    if not isinstance(platform, PersistentPlatform):
        return ()
    platform.adopt(deployed.spec, deployed.version)
    return platform.instances(deployed.name)


def refuse_foreign_autoscaler(platform: Platform, function: str) -> None:
    """Refuse to change instances that another autoscaler manages.

    Raises:
        GnomonError: 409 `foreign_autoscaler`.

    """
    refusal: GnomonError | None = platform.scaling_conflict(function) if isinstance(platform, PersistentPlatform) else None
    if refusal is not None:
        raise refusal
