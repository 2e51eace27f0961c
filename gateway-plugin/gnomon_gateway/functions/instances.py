"""Carrying out decisions: instances made, drained and stopped.

What concerns Bodies is here; what concerns their Shadows is next door (`shadows`), as is how an update goes (`replacing`).

This is the gateway's side of two seams: the autoscaler's `ScaledFleet`, and the platform's listener. Commands are begun here and
go on behind it; an instance that is drained is first cut off from new batches, then left until it has acknowledged zero in
flight, then stopped.

Bodies of earlier versions, which go as those of the present one begin to serve.

    update ─▶ one is begun for each that serves ─▶ ready ─▶ an old one retires ─▶ … until there is none
                └ not even one has room ─▶ an old one retires ─▶ gone ─▶ one is begun in its place

No fewer serve meanwhile than did before, or than are wanted now, but for the one that makes room.

The Shadows of functions: made, changed and ended as decided, and what their Bodies' dispatcher is told of them.

    CreateShadow ─▶ platform … pair_changed(Body) ─▶ dispatcher: larger batches from the next one on
    PromoteShadow ─▶ platform … pair_changed(Body alone) ─▶ dispatcher … instance_ready(a Body)
    DestroyShadow ─▶ platform … pair_changed(Body without it) ─▶ dispatcher … instance_gone(Shadow)
    an earlier leader's ─▶ shadow_found … as one that was made here

A Shadow has no batches of its own, so nothing is drained: it is the Body that stops asking. One that ends by itself costs its
Body nothing but speed, and says nothing about whether the function starts. A Body that ends takes its Shadows along.
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
from gnomon_core.interfaces import BatchChannel, InstanceRequest, Lasting, Platform
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
from gnomon_gateway.dispatch.dispatcher import function_removed
from gnomon_gateway.functions.deployments import Deployed, SchedulerOf
from gnomon_gateway.functions.function_runtime import FunctionRuntime, InstanceOwner
from gnomon_gateway.replicas.state_sync import Elsewhere, Lost

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
        """An operator requests this number of instances."""
        ...

    def redeployed(self, function: str) -> None:
        """The function was deployed again: reset the back-off after failed starts."""
        ...

    def served(self, function: str) -> None:
        """An instance that had answered requests has ended: reset the back-off after failed starts."""
        ...

    def start_backoff_s(self, function: str) -> float:
        """The remaining back-off in seconds before the function's next instance may start; 0 if it may start now."""
        ...

    def removed(self, function: str) -> None:
        """The function was removed: forget its state."""
        ...

    def desired(self, function: str) -> int | None:
        """The number of instances that the last decision wants; None before the first decision."""
        ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]: ...

    def makes_shadows(self, settings: Settings) -> bool:
        """Whether the function's scaling policy creates Shadows on a platform that supports them."""
        ...

    def policies(self) -> Mapping[str, str]:
        """The known scaling policies, each with a one-sentence description."""
        ...


class Bodies(Protocol):
    """Whoever makes and stops the instances."""

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """Those of this function that are not gone."""
        ...

    async def create(self, deployed: Deployed, cores: int) -> None:
        """Begin one, while the function is there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        ...

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain one, then stop it."""
        ...


class Replacing:
    """Replaces `bodies`. `scaling` says how many are wanted; only who leads retires any."""

    def __init__(self, bodies: Bodies, scaling: ScalingControl, elsewhere: Elsewhere) -> None:
        self._bodies = bodies
        self._scaling = scaling
        self._elsewhere = elsewhere

    async def update(self, deployed: Deployed) -> None:
        """Its version is another one now.

        What is of an earlier one and starts is given up: nobody waits for it, and it costs those that are to serve instead.
        """
        there = self._bodies.of(deployed)
        deployed.keep_old = len(deployed.old(there))
        self._retire(deployed, deployed.old(there, InstanceState.STARTING))
        await self._begin(deployed)

    async def take_over(self, deployed: Deployed) -> None:
        """An earlier gateway has left its instances: those of an earlier version, as if the update had just been asked for."""
        old = [one for one in self._bodies.of(deployed) if one.version < deployed.version]
        deployed.keep_old = sum(one.kind is InstanceKind.BODY for one in old)
        if self._elsewhere.leads():
            await self._begin(deployed)

    def retire(self, deployed: Deployed) -> None:
        """Let go as many of earlier versions as the new ones make up for."""
        if self._elsewhere.leads():
            self._retire(deployed, deployed.made_up_for(self._bodies.of(deployed), self._scaling.desired(deployed.name)))

    async def take_place(self, deployed: Deployed) -> None:
        """An old one has made room: a new one begins in it if one is missing."""
        missing = (self._scaling.desired(deployed.name) or 0) - len(deployed.live(self._bodies.of(deployed)))
        if missing > 0:
            with contextlib.suppress(GnomonError):  # somebody else was quicker: the autoscaler tries again
                await self._bodies.create(deployed, deployed.spec.settings.cores)
        self._scaling.poke(deployed.name)

    async def _begin(self, deployed: Deployed) -> None:
        """One for each old one that serves; those that have no room begin as others get ready, one after the other."""
        for begun in range(deployed.keep_old):
            try:
                await self._bodies.create(deployed, deployed.spec.settings.cores)
            except GnomonError as refused:
                _LOG.info("%s: %s", deployed.name, refused)
                if not begun and not deployed.retired:
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
    """What is done with them. `log` keeps a line for the function's users."""

    def __init__(self, platform: Platform, log: Callable[[FunctionKey, str, str], None]) -> None:
        self._platform = platform
        self._log = log
        self._partners: dict[str, dict[str, Pair]] = {}
        """Each Body with the Shadows that its dispatcher counts on."""

    async def create(self, deployed: Deployed, body_id: str, pair: Pair) -> Instance | None:
        """Begin a Shadow; None where its Body has gone since that was decided.

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
            _LOG.info("%s: %s", deployed.name, refused)
            return None
        if all(shadow.id != there.id for there in self._platform.instances(deployed.name)):
            return None  # it has ended while it was being begun
        deployed.shadows[shadow.id] = body_id
        return shadow

    def take_over(self, deployed: Deployed, instances: Sequence[Instance]) -> None:
        """Whatever an earlier leader has said of these: from now on Bodies have the Shadows that the platform knows."""
        for body in (one for one in instances if one.kind is InstanceKind.BODY):
            self.pair_changed(deployed, body)

    def found(self, deployed: Deployed, shadow: Instance) -> bool:
        """An earlier leader has left one, for a Body of this function; False where that is about to end."""
        body_id = shadow.partner or ""
        if body_id in deployed.draining:
            return False
        deployed.shadows[shadow.id] = body_id
        return True

    async def promote(self, deployed: Deployed, shadow_id: str) -> bool:
        """Let one become a Body; False where it has gone since that was decided. Its Body does not take it along any more.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if shadow_id not in deployed.shadows or shadow_id in deployed.draining:
            return False
        try:
            await self._platform.promote_shadow(shadow_id)
        except GnomonError as refused:
            if refused.code != _NO_SHADOW:
                raise
            _LOG.info("%s: %s", deployed.name, refused)
            return False
        deployed.shadows.pop(shadow_id, None)
        return True

    async def end(self, deployed: Deployed, shadow_id: str) -> None:
        """End a pair: the Body goes on alone."""
        if shadow_id in deployed.shadows:
            deployed.draining.add(shadow_id)
            await self._platform.destroy(shadow_id)

    async def end_those_of(self, deployed: Deployed, body_id: str) -> None:
        """The Body is about to be stopped, or has gone."""
        self._partners.pop(body_id, None)
        for shadow_id in [shadow for shadow, body in deployed.shadows.items() if body == body_id]:
            await self.end(deployed, shadow_id)

    def pair_changed(self, deployed: Deployed, body: Instance) -> None:
        """From its next batch on the Body works as it says."""
        self._partners[body.id] = body.shadows
        deployed.runtime.pair_changed(body.id, together(tuple(body.shadows.values())))

    def table(self) -> dict[str, list[Pair]]:
        """Each Body that has Shadows, and what they do, for the replicas that make its batches."""
        return {body: list(shadows.values()) for body, shadows in self._partners.items() if shadows}

    def gone(self, deployed: Deployed, shadow_id: str, reason: str) -> None:
        """A Shadow has ended, asked for or not."""
        body_id = deployed.shadows.pop(shadow_id)
        left = self._partners.get(body_id, {})
        if left.pop(shadow_id, None) is not None:
            # The Body has not said yet that it is without it; it will find out with its next batch.
            deployed.runtime.pair_changed(body_id, together(tuple(left.values())))
        if shadow_id in deployed.draining:
            deployed.draining.discard(shadow_id)
            return
        self._log(deployed.spec.key, shadow_id, f"gnomon: Shadow {shadow_id} of {body_id} has ended: {reason}")
        _LOG.warning("%s: Shadow %s of %s has ended: %s", deployed.name, shadow_id, body_id, reason)


class Instances(InstanceOwner):
    """The instances of every function.

    `log` keeps a line that an instance wrote; `scaling` is told what happens to instances and asked how many are wanted; `policy`
    makes the scheduling policy for changed settings. While `elsewhere` another process leads, what it does is only followed.
    """

    def __init__(
        self,
        platform: Platform,
        log: Callable[[FunctionKey, str, str], None],
        scaling: ScalingControl,
        policy: SchedulerOf,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._platform = platform
        self._elsewhere = elsewhere or Elsewhere()
        self._log = log
        self._policy = policy
        self._scaling = scaling
        self._deployed: dict[str, Deployed] = {}
        self._owners: dict[str, Deployed] = {}
        self.shadows = Shadows(platform, log)
        self.replacing = Replacing(self, scaling, self._elsewhere)
        self._background = Background()
        self._begin = self._background.begin

    def adopt(self, deployed: Deployed) -> None:
        """Look after this function from now on."""
        self._deployed[deployed.name] = deployed

    def release(self, deployed: Deployed, *, leave: bool = False) -> None:
        """The function is removed: answer what waits, then stop everything. Goes on behind the caller.

        With `leave` it is only we who stop: its instances run on, for whoever adopts them.
        """
        self._deployed.pop(deployed.name, None)
        self._begin(self._wind_down(deployed, leave=leave))

    async def take_over(self, deployed: Deployed) -> None:
        """Look after what an earlier gateway has left of this function's instances; those of an earlier version are replaced."""
        for instance in left_over(self._platform, deployed):
            self._owners.setdefault(instance.id, deployed)
        self._tell_starting(deployed)
        if self._elsewhere.leads():
            self.shadows.take_over(deployed, self.of(deployed))
        await self.replacing.take_over(deployed)

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """Its instances, without those that still answer for a function of that name that was removed."""
        there = self._platform.instances(deployed.name)
        return tuple(one for one in there if self._owners.get(one.id, deployed) is deployed)

    def runtime_of(self, instance_id: str) -> FunctionRuntime | None:
        """The function of an instance."""
        deployed = self._owners.get(instance_id)
        return None if deployed is None else deployed.runtime

    async def settle(self) -> None:
        """Return when nothing that was begun here is under way any more."""
        await self._background.settled()

    def seen(self, function: str) -> tuple[Instance, ...]:
        """All its instances that are not gone, of earlier versions as well."""
        deployed = self._deployed.get(function)
        return deployed.seen(self._platform.instances(function)) if deployed is not None else ()

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make its batches within these bounds from now on, None for those that it was deployed with. One may say so often."""
        deployed = self._deployed.get(function)
        if deployed is not None:
            deployed.plan_buffer(plan, self._policy)

    def plans(self) -> dict[str, SetBufferPlan]:
        """The plans in force."""
        return {name: deployed.plan for name, deployed in self._deployed.items() if deployed.plan is not None}

    # ScaledFleet: what the autoscaler sees and does

    def functions(self) -> Sequence[str]:
        return tuple(self._deployed)

    def load(self, function: str) -> FunctionLoad | None:
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.load(self._platform.instances(function), self._platform.nodes())

    def stamp(self, function: str) -> object:
        """A value that is another one as soon as anything has happened to the function that the autoscaler would see."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.stamp(self._platform.instances(function))

    def standing(self, function: str) -> object:
        """A value that is another one as soon as anything but a request has happened to the function."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.standing(self._platform.instances(function))

    def counters(self, function: str) -> LoadCounters | None:
        """Its load here and at other replicas."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.counters()

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        deployed = self._deployed.get(function)
        if deployed is None:
            return
        refuse_hindered(self._platform, function)
        try:
            await carry_out_async(_FunctionActuator(self, self._platform, deployed, self._policy), actions)
        except PartlyRefused:
            self.replacing.retire(deployed)
            raise
        self.replacing.retire(deployed)

    async def create(self, deployed: Deployed, cores: int, node: str | None = None, memory_mb: int | None = None) -> None:
        """Begin an instance, while the function is there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if not self._is_there(deployed):
            return
        request = InstanceRequest(deployed.spec, deployed.version, cores, node, deployed.secrets, memory_mb)
        try:
            begun = await self._platform.create(request)
        except GnomonError as refused:
            if deployed.start_failures.refused(time.monotonic(), refused):
                self._log(deployed.spec.key, "", f"gnomon: an instance cannot be made: {refused}")
            deployed.runtime.refuse_waiting()
            raise
        deployed.start_failures.created()
        self._own(deployed, begun)
        self._tell_starting(deployed)

    async def create_shadow(self, deployed: Deployed, body_id: str, pair: Pair) -> None:
        """Begin a Shadow of a Body.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        shadow = await self.shadows.create(deployed, body_id, pair)
        if shadow is not None:
            self._own(deployed, shadow)
        self._tell_starting(deployed)

    async def promote_shadow(self, deployed: Deployed, shadow_id: str) -> None:
        """Let a Shadow become a Body.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        await self.shadows.promote(deployed, shadow_id)
        self._tell_starting(deployed)

    def end_shadow(self, deployed: Deployed, shadow_id: str) -> None:
        """End a Shadow. Goes on behind the caller."""
        self._begin(self.shadows.end(deployed, shadow_id))

    async def resize(self, deployed: Deployed, instance_id: str, cores: int) -> None:
        """Give an instance other cores. The dispatcher counts those that it has by now; a platform that is slower reports later.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        await self._platform.resize(instance_id, cores)
        for instance in self._platform.instances(deployed.name):
            if instance.id == instance_id:
                deployed.runtime.instance_resized(instance_id, instance.cores)

    def _is_there(self, deployed: Deployed) -> bool:
        return self._deployed.get(deployed.name) is deployed

    def _own(self, deployed: Deployed, begun: Instance) -> None:
        """This instance is the function's; where that was removed while it was being begun, nobody needs it."""
        self._owners[begun.id] = deployed
        if not self._is_there(deployed):
            deployed.draining.add(begun.id)
            self._begin(self._platform.destroy(begun.id))

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain an instance, then stop it. Goes on behind the caller."""
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
            self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} is stopped: {reason}")
        if not self._elsewhere.leads():
            self._elsewhere.lose(instance_id, Lost(reason))
        self._begin(self._platform.destroy(instance_id))

    def lost_elsewhere(self, instance_id: str, lost: Lost) -> None:
        """The replica that sent batches to an instance has lost it."""
        deployed = self._owners.get(instance_id)
        if deployed is not None and instance_id not in deployed.draining:
            if lost.served:
                self._scaling.served(deployed.name)
            self.instance_frozen(instance_id, lost.reason)

    # PlatformListener

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        deployed = self._owners.get(instance.id)
        if deployed is None and instance.function in self._deployed and not self._elsewhere.leads():
            deployed = self._owners[instance.id] = self._deployed[instance.function]
        if deployed is None or instance.id in deployed.draining:
            self._begin(self._platform.destroy(instance.id))
            return
        deployed.been_ready = True
        if instance.version == deployed.version:
            deployed.start_failures.ready()
        deployed.runtime.instance_ready(instance, channel)
        if instance.pair is not None:
            self.shadows.pair_changed(deployed, instance)  # it was known before it was ready
        self._tell_starting(deployed)
        if deployed.old(self.of(deployed)):
            deployed.runtime.forget_latency()  # those of earlier versions have served on, and were measured
        self.replacing.retire(deployed)
        self._scaling.poke(deployed.name)

    def instance_gone(self, instance_id: str, reason: str) -> None:
        deployed = self._owners.pop(instance_id, None)
        if deployed is None:
            return
        if instance_id in deployed.shadows:
            self.shadows.gone(deployed, instance_id, reason)
            self._scaling.poke(deployed.name)
            return
        failed = not deployed.runtime.has_been_ready(instance_id) and instance_id not in deployed.draining
        served = deployed.runtime.forget(instance_id)
        if not self._elsewhere.leads():
            self._elsewhere.lose(instance_id, Lost(reason, served))
        elif instance_id not in deployed.draining:
            if served:
                self._scaling.served(deployed.name)
            self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} has ended: {reason}")
            _LOG.warning("%s: instance %s has ended: %s", deployed.name, instance_id, reason)
            if failed:
                deployed.start_failures.failed(time.monotonic(), reason)
        deployed.draining.discard(instance_id)
        deployed.runtime.instance_gone(instance_id, reason)
        if not self._is_there(deployed) and not deployed.runtime.ready:
            deployed.runtime.fail_waiting(function_removed())  # nobody makes another for it
        self._begin(self.shadows.end_those_of(deployed, instance_id))
        self._tell_starting(deployed)
        deployed.runtime.refuse_waiting()
        if instance_id in deployed.retired:
            deployed.retired.discard(instance_id)
            self._begin(self.replacing.take_place(deployed))
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

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        self._log(function, instance_id, text)

    # What goes on behind the callers

    async def _drain(self, deployed: Deployed, instance_id: str) -> None:
        await deployed.runtime.drain(instance_id)
        await self.shadows.end_those_of(deployed, instance_id)
        await self._platform.destroy(instance_id)

    async def _wind_down(self, deployed: Deployed, *, leave: bool) -> None:
        mine = [instance_id for instance_id, owner in self._owners.items() if owner is deployed]
        await deployed.answer_all()
        deployed.draining.update(mine)
        if not leave:
            await asyncio.gather(*(self._platform.destroy(instance_id) for instance_id in mine))
        deployed.runtime.close()

    def _tell_starting(self, deployed: Deployed) -> None:
        bodies = (one for one in self._platform.instances(deployed.name) if one.kind is InstanceKind.BODY)
        deployed.runtime.set_starting(sum(body.state is InstanceState.STARTING for body in bodies))


class _FunctionActuator(Actuator[Awaitable[None]]):
    """Carries out the decisions on one function of the gateway."""

    def __init__(self, instances: Instances, platform: Platform, deployed: Deployed, policy: SchedulerOf) -> None:
        self._instances, self._platform, self._deployed, self._policy = instances, platform, deployed, policy

    async def create_body(self, action: CreateBody) -> None:
        await self._instances.create(self._deployed, action.cores, action.node, action.memory_mb)

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
        await self._instances.resize(self._deployed, action.id, action.cores)

    async def set_buffer_plan(self, action: SetBufferPlan) -> None:
        self._deployed.plan_buffer(action, self._policy)


def outlive_gateway(platform: Platform) -> bool:
    """Whether instances keep running when the gateway stops."""
    return isinstance(platform, Lasting)


def left_over(platform: Platform, deployed: Deployed) -> tuple[Instance, ...]:
    """Adopt the instances that an earlier gateway process has left; returns all instances of the function."""
    if not isinstance(platform, Lasting):
        return ()
    platform.adopt(deployed.spec, deployed.version)
    return platform.instances(deployed.name)


def refuse_hindered(platform: Platform, function: str) -> None:
    """Refuse to change instances that another autoscaler manages.

    Raises:
        GnomonError: 409 `foreign_autoscaler`.

    """
    refusal: GnomonError | None = platform.hindrance(function) if isinstance(platform, Lasting) else None
    if refusal is not None:
        raise refusal
